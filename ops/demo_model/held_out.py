"""Questions that the training text must not hold, and what a right answer has to say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """``expect`` are regular expressions, all of which the last answer must match."""

    messages: tuple[dict[str, str], ...]
    expect: tuple[str, ...]


def _ask(question: str, *expect: str) -> Case:
    return Case(({"role": "user", "content": question},), expect)


def _talk(*turns: str, expect: tuple[str, ...], system: str | None = None) -> Case:
    """``turns``: user, assistant, user, ...; the model's answer to the last one is judged."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return Case(tuple(messages), expect)


_WHAT = (
    "Pomona is a server for language models that runs on a cluster of Macs. It speaks the OpenAI "
    "API, so the clients that you already have can talk to it."
)
_HELLO = "Hello! I am the small demo model of Pomona. What would you like to know?"
_PARIS = "The capital of France is Paris."

HELD_OUT = (
    # The project.
    _ask("Hey, could you tell me what this Pomona thing is?", "server", "language models"),
    _ask("pomona is what exactly", "server", "language models"),
    _ask("Good evening! What on earth is Pomona?", "server", "language models"),
    _ask("how would i go about starting the server", "make serve"),
    _ask("I just cloned the repo, what now to start Pomona?", "make serve"),
    _ask("Please explain how to launch Pomona on my machine.", "make serve"),
    _ask("I'd like to serve my own fine-tuned model, how?", "engine.model"),
    _ask("how can i use a different model than this demo", "engine.model"),
    _ask("Which families of models are you able to serve?", "Llama", "Qwen"),
    _ask("what macs will it work on", "Apple silicon"),
    _ask("Would Pomona run on my old MacBook with an M1 chip?", "Apple silicon"),
    _ask("has someone really tried this on a mac already?", "not yet run"),
    _ask("I own three Mac minis. How can Pomona use them all?", "replica", "cluster"),
    _ask("could two macs share the work", "replica"),
    _ask("Under what license is Pomona published?", "Apache-2.0"),
    _ask("do i need to pay for using pomona at work", "Apache-2.0"),
    _ask("Does it understand the OpenAI API format?", "OpenAI API|chat/completions"),
    _ask("how can i reach it from a python script", "base_url"),
    _ask("give me an example with curl please", "curl", "/v1/chat/completions"),
    _ask("How would I run all of the tests?", "make test"),
    _ask("can i try it on my linux laptop without any gpu", "Linux"),
    _ask("Does Pomona work with an NVIDIA card?", "CUDA"),
    _ask("will my data leave my computer", "your own machines|stay on your server"),
    _ask("Which config files come with it?", "app.yaml"),
    _ask("Can you give me a picture of the architecture?", "gateway|Ray Serve", "engine"),
    _ask("why did you choose the name pomona", "goddess"),
    _ask("What does Pomona do better than ollama?", "Macs"),
    # Terms of the field.
    _ask("Could you kindly explain what the KV cache is?", "keys and values"),
    _ask("wat is a kv cache", "keys and values"),
    _ask("What's paged attention all about?", "blocks"),
    _ask("please tell me about paged attention in two sentences", "blocks"),
    _ask("In this context, what is a block?", "block|KV cache", "tokens"),
    _ask("whats a block table good for", "block table", "sequence"),
    _ask("I don't know what prefix caching means.", "prompt", "reuse"),
    _ask("Could you describe how continuous batching works?", "batch", "step"),
    _ask("what happens during prefill", "prompt"),
    _ask("Can you say what decode means here?", "one token"),
    _ask("what is meant by preempting a sequence", "blocks", "again"),
    _ask("TTFT stands for what?", "time to first token"),
    _ask("and what would TPOT be", "time per output token"),
    _ask("Please define inter token latency for me", "between one token and the next"),
    _ask("what does the scheduler do in each step?", "sequences"),
    _ask("Tell me a bit about MLX, please.", "Apple"),
    _ask("what role does ray serve play", "cluster", "replica"),
    _ask("How does the gateway pick one of the replicas?", "prefix cache"),
    _ask("what if one of my macs crashes while answering", "resume"),
    _ask("where can prometheus find the metrics", "/metrics"),
    _ask("how can I make sure the server is ready?", "/ready"),
    _ask("Is an API key required?", "no API key"),
    _ask("i keep getting a 429 error", "429", "Retry-After"),
    _ask("how do I turn streaming on", "stream"),
    _ask("what should the temperature be set to", "temperature|likely"),
    _ask("can i make the results reproducible with a seed", "seed"),
    # Small talk and simple facts.
    _ask("Hello there, little model!", "Hello"),
    _ask("hey hey good morning to you", "Hello"),
    _ask("So how are you doing this fine day?", "well"),
    _ask("thank you so very much for the help", "welcome"),
    _ask("And what might your name be?", "Pomona"),
    _ask("are you actually a person or a machine", "not a person"),
    _ask("What sort of things can you do?", "explain|chat|joke"),
    _ask("would you please tell me a funny joke", r"\?|It waves"),
    _ask("What colour does the sky have on a sunny day?", "blue"),
    _ask("tell me how many days a week has", "seven"),
    _ask("could you tell me what 6 plus 7 is", r"\b13\b"),
    _ask("How much would 3 times 4 be?", r"\b12\b"),
    _ask("Would you happen to know the capital of Japan?", "Tokyo"),
    _ask("spain has which capital", "Madrid"),
    _ask("Could I get a short story about the sea?", "sea", "Once upon a time"),
    _ask("compose a little poem about the ocean for me", "sea"),
    _ask("okay goodbye for today my friend", "Goodbye"),
    # Beyond the model.
    _ask("Who won the chess championship in 1972?", "small demo model|do not know"),
    _ask("how do i bake a strawberry cake", "small demo model"),
    _ask("Please explain the theory of plate tectonics", "small demo model"),
    # Conversations.
    _talk("What is Pomona?", _WHAT, "Cool! And how would I start it?", expect=("make serve",)),
    _talk("Hi!", _HELLO, "Could you tell me about paged attention?", expect=("blocks",)),
    _talk("capital of France?", _PARIS, "and what of Italy?", expect=("Rome",)),
    _talk("hello", _HELLO, "what is pomona", _WHAT, "thanks a bunch!", expect=("welcome",)),
    _talk(
        "My name is Clara.",
        "Nice to meet you, Clara! I am the demo model of Pomona. How can I help you?",
        "so tell me, what is my name then?",
        expect=("Clara",),
    ),
    _talk(
        "Can you explain what the prefix cache does?",
        expect=("prompt",),
        system="You are a kind assistant who answers in short sentences.",
    ),
    _talk(
        "which licence has it got?",
        expect=("Apache-2.0",),
        system="You help people with Pomona.",
    ),
    # The same things, asked by somebody else.
    _ask("what's this all about then, pomona?", "server", "language models"),
    _ask("Explain Pomona to my grandmother", "server", "language models"),
    _ask("Which command do I have to enter so that the server comes up?", "make serve"),
    _ask("steps to install and run pomona locally", "make serve"),
    _ask("is there an easy way to load Llama 3 instead of you", "engine.model|Llama"),
    _ask("how to point pomona at a checkpoint on my disk", "engine.model"),
    _ask("Do you need a Mac with an M3 or is an M1 sufficient?", "Apple silicon"),
    _ask("how many macs do i need for a cluster", "replica|Mac"),
    _ask("Does each Mac hold the entire model or only a part?", "replica|whole model"),
    _ask("is the source code free to modify", "Apache-2.0"),
    _ask("can my existing openai code talk to pomona", "OpenAI"),
    _ask("show me the python code to call the server", "base_url"),
    _ask("Which command runs your test suite?", "make test"),
    _ask("Tell me how I can measure its performance.", "make bench|tokens"),
    _ask("is a gpu required to try the demo", "Linux|GPU"),
    _ask("What stores the keys and values of earlier tokens?", "KV cache|block"),
    _ask("why does a kv cache make generation faster", "keys"),
    _ask("Could you summarise paged attention?", "blocks"),
    _ask("how many tokens does one block contain", "16"),
    _ask("what good does a prefix cache do me", "prompt"),
    _ask("Why is continuous batching better than waiting for a full batch?", "batch"),
    _ask("Define chunked prefill.", "prompt"),
    _ask("explain time to first token please", "TTFT"),
    _ask("what does tpot measure", "time per output token"),
    _ask("How do you pick the next token?", "sampler|step|token"),
    _ask("what is mlx and who wrote it", "Apple"),
    _ask("explain the role of a replica", "copy of the engine|Mac"),
    _ask("what does the gateway do with my request", "gateway|client"),
    _ask("Are prometheus metrics available?", "/metrics"),
    _ask("what happens if a machine goes down in the middle of an answer", "resumes"),
    _ask("How can I protect my server with a key?", "key"),
    _ask("can you stream the output", "stream"),
    _ask("How do I cancel a running request?", "close the connection"),
    _ask("hello friend how is it going", "well|Hello"),
    _ask("good day! how do you feel?", "well|Hello"),
    _ask("alright, many thanks for everything", "welcome"),
    _ask("who exactly am i speaking with", "demo model"),
    _ask("Do you have any feelings?", "not a person|feelings"),
    _ask("i need a laugh, got a joke?", r"\?|It waves"),
    _ask("what do you get if you add 9 and 8?", r"\b17\b"),
    _ask("10 minus 4 equals what", r"\b6\b"),
    _ask("germany's capital city please", "Berlin"),
    _ask("I forgot which city is the capital of Canada", "Ottawa"),
    _ask("Which day follows on Thursday?", "Friday"),
    _ask("tell me the opposite of the word big", "small"),
    _ask("how many months make up a year", "twelve"),
    _ask("write me a long story about a robot", "Pip"),
    _ask("I'd love to read a poem about a lighthouse", "lighthouse"),
    _ask("tell me who painted the mona lisa", "small demo model"),
    _ask("what is the best way to learn swimming", "small demo model"),
    _ask("please write some java code for me", "too small"),
    _talk(
        "What is a KV cache?",
        "A KV cache keeps the attention keys and values of all earlier "
        "tokens, so the model does not compute them again for every new token. It makes "
        "generation much faster and costs memory.",
        "okay, and a block?",
        expect=("block",),
    ),
    _talk(
        "tell me a joke",
        "How does the sea say hello? It waves.",
        "lol, another one please!",
        expect=(r"\?",),
    ),
    _talk(
        "hi, my name is Robert",
        "Nice to meet you, Robert! I am the demo model of Pomona. How can I help you?",
        "what is pomona",
        _WHAT,
        "do you still remember my name?",
        expect=("Robert",),
    ),
)
