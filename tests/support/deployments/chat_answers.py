"""Answers as each family of models writes them, and what is read in them."""

from __future__ import annotations

from deployments.protocol.chat_formats.events import (
    CallArguments,
    CallStart,
    Event,
    Reasoning,
    Text,
)


def parts_of(events: list[Event]) -> tuple[list[tuple[str, str]], dict[type, str]]:
    """Names and arguments of calls; what was said, and what was thought."""
    calls: list[tuple[str, str]] = []
    texts: dict[type, str] = {Text: "", Reasoning: ""}
    for event in events:
        match event:
            case CallStart(function):
                calls.append((function, ""))
            case CallArguments(json):
                calls[-1] = (calls[-1][0], calls[-1][1] + json)
            case Text(told) | Reasoning(told):
                texts[type(event)] += told
    return calls, texts


def call(name: str, arguments: str) -> list[Event]:
    return [CallStart(name), CallArguments(arguments)]


TWO = '{"a": "x<y \\"q\\" é", "n": 1}'
NONE = "{}"

ANSWERS: list[tuple[str, str, list[Event]]] = [
    ("plain", " <tool_call> is text\n", [Text(" <tool_call> is text\n")]),
    ("plain", "", []),
    ("hermes", "Hello <b>you</b>! \n", [Text("Hello <b>you</b>! \n")]),
    (
        "hermes",
        "<think>\nhm <tool_call>?\n</think>\n\nSee:\n\n<tool_call>\n"
        f'{{"name": "f", "arguments": {TWO}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
        [Reasoning("hm <tool_call>?"), Text("See:"), *call("f", TWO), *call("g", NONE)],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"b": [1, {"c": "}"}]}, "name": "g"}</tool_call> done.',
        [*call("g", '{"b": [1, {"c": "}"}]}'), Text("done.")],
    ),
    ("hermes", '<tool_call>{"name": "g"}</tool_call>', call("g", NONE)),
    (
        "hermes",
        '<tool_call>{"name": "g", "arguments": "{\\"a\\": 1}", "id": [7]}</tool_call>',
        call("g", '{"a": 1}'),
    ),
    (
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "g", "parameters": {"a": 1}}}'
        "</tool_call>",
        call("g", '{"a": 1}'),
    ),
    (
        "hermes",
        '<tool_call>{"name": "g", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>',
        call("g", '{"a": "\\ud800"}'),
    ),
    (
        "hermes",
        '<tool_call>{"name": "\\ud800"}</tool_call>',
        [Text('<tool_call>{"name": "\\ud800"}</tool_call>')],
    ),
    # What only looks like a call.
    ("hermes", "Use <tool_call> tags.", [Text("Use <tool_call> tags.")]),
    ("hermes", "<tool_call>\n[]\n</tool_call>", [Text("<tool_call>\n[]\n</tool_call>")]),
    (
        "hermes",
        'a\n<tool_call>{"nome": 1}</tool_call>',
        [Text('a\n<tool_call>{"nome": 1}</tool_call>')],
    ),
    (
        "hermes",
        '<tool_call><tool_call>{"name": "g", "arguments": {}}</tool_call>',
        [Text("<tool_call>"), *call("g", NONE)],
    ),
    # A call that ends badly.
    ("hermes", '<tool_call>{"name": "g", "arguments": {"a": "x', call("g", '{"a": "x')),
    ("hermes", '<tool_call>{"name": "g", "argu', call("g", NONE)),
    (
        "hermes",
        '<tool_call>{"name": "g", "arguments": {"a": 1}</tool_call> sorry',
        [*call("g", '{"a": 1}'), Text("sorry")],
    ),
    (
        "hermes",
        '<tool_call>{"name": "g", "arguments": {"a": 1</tool_call> sorry',
        [*call("g", '{"a": 1'), Text("sorry")],
    ),
    ("hermes", "<think>I never end", [Reasoning("I never end")]),
    (
        "qwen3_coder",
        'On it.\n<tool_call>\n<function=f>\n<parameter=a>\nx<y "q" é\n</parameter>\n'
        "<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n"
        "</function>\n</tool_call>",
        [Text("On it."), *call("f", TWO), *call("g", NONE)],
    ),
    (
        "qwen3_coder",
        "<tool_call><function=search><parameter=query>\n\n  two\nlines\n\n</parameter>"
        '<parameter=deep>{"x": [1, 2]}</parameter><parameter=word>maybe</parameter>'
        "</function></tool_call>",
        call(
            "search",
            '{"query": "\\n  two\\nlines\\n", "deep": {"x": [1, 2]}, "word": "maybe"}',
        ),
    ),
    (
        "qwen3_coder",
        '<tool_call><function=g><parameter=b>\n\n {"c": "</parameter>"}\n</parameter>'
        '<parameter=d>"</parameter></function></tool_call>',
        call("g", '{"b": {"c": "</parameter>"}, "d": '),
    ),
    ("qwen3_coder", "<tool_call>\n<fun", [Text("<tool_call>\n<fun")]),
    (
        "glm4_moe",
        '<think>so</think>\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x<y "q" é</arg_value>\n'
        "<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call><tool_call>g</tool_call>",
        [Reasoning("so"), *call("f", TWO), *call("g", NONE)],
    ),
    (
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">x<y "q" é</parameter>\n'
        '<parameter name="n">1</parameter>\n</invoke>\n<invoke name="g">\n</invoke>\n'
        "</minimax:tool_call>",
        [*call("f", TWO), *call("g", NONE)],
    ),
    (
        "mistral",
        f'Well.[TOOL_CALLS][{{"name": "f", "arguments": {TWO}, "id": "123456789"}}, '
        '{"name": "g", "arguments": {}}]',
        [Text("Well."), *call("f", TWO), *call("g", NONE)],
    ),
    (
        "mistral_v11",
        f"[THINK]hm[/THINK][TOOL_CALLS]f[ARGS]{TWO}[TOOL_CALLS]g[ARGS]{{}}",
        [Reasoning("hm"), *call("f", TWO), *call("g", NONE)],
    ),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        f"{TWO}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n"
        "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [*call("f", TWO), *call("g", NONE)],
    ),
    (
        "deepseek_v3_1",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{TWO}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [*call("f", TWO), *call("g", NONE)],
    ),
    (
        "deepseek_v3_2",
        'Right.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="a" string="true">x<y "q" é</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="n" string="false">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        [Text("Right."), *call("f", TWO), *call("g", NONE)],
    ),
    (
        "deepseek_v3_2",
        '<｜DSML｜function_calls><｜DSML｜invoke name="g">'
        '<｜DSML｜parameter name="b" string="true">\n1</｜DSML｜parameter>'
        '<｜DSML｜parameter name="c" string="false">[{"d": null}]</｜DSML｜parameter>'
        "</｜DSML｜invoke></｜DSML｜function_calls>",
        call("g", '{"b": "\\n1", "c": [{"d": null}]}'),
    ),
    (
        "deepseek_v4",
        'hm</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="a" string="true">x<y "q" é</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="n" string="false">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        [Text("hm</think>"), *call("f", TWO), *call("g", NONE)],
    ),
    (
        "deepseek_v4_1",
        '<think>so</think><｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n'
        '<｜DSML｜ parameter name="a" string="true">x<y "q" é</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="n" string="false">1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n'
        '<｜DSML｜ invoke name="g">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>',
        [Reasoning("so"), *call("f", TWO), *call("g", NONE)],
    ),
    ("llama3_json", f'{{"name": "f", "parameters": {TWO}}}', call("f", TWO)),
    ("llama3_json", f'\n<|python_tag|>{{"name": "f", "parameters": {TWO}}}', call("f", TWO)),
    (
        "llama3_json",
        '{"type": "function", "name": "g", "parameters": {}}',
        call("g", NONE),
    ),
    ("llama3_json", ' {"name": "Ann", "age": 3}', [Text(' {"name": "Ann", "age": 3}')]),
    ("llama3_json", '{"name": "Ann"}', [Text('{"name": "Ann"}')]),
    ("llama3_json", '{"parameters": {}, "name": "g"}', [Text('{"parameters": {}, "name": "g"}')]),
    (
        "llama3_json",
        'So: {"name": "g", "parameters": {}}',
        [Text('So: {"name": "g", "parameters": {}}')],
    ),
    ("llama3_json", "<|python_tag|>print(1)", [Text("<|python_tag|>print(1)")]),
    ("llama3_json", " \n", [Text(" \n")]),
    ("pythonic", "[f(a='x<y \"q\" é', n=1), g()]", [*call("f", TWO), *call("g", NONE)]),
    (
        "pythonic",
        "<|python_start|>[f(a='x<y \"q\" é', n=1), g()]<|python_end|>",
        [*call("f", TWO), *call("g", NONE)],
    ),
    (
        "pythonic",
        "<|python_start|>[g(b=[True, None, (1, 2.5)], c={'d': {}, \"e\": 'it\\'s'}, f=-3)]"
        "<|python_end|>",
        call("g", '{"b": [true, null, [1, 2.5]], "c": {"d": {}, "e": "it\'s"}, "f": -3}'),
    ),
    (
        "pythonic",
        '[g(s="""two\n"lines" """, t="\\u00e9\\x41\\q\\ud83d\\ude00", u=r, v=.5, w=NaN, x=1E999)]',
        call(
            "g",
            '{"s": "two\\n\\"lines\\" ", "t": "éA\\\\q\\ud83d\\ude00", "u": "r", "v": 0.5, '
            '"w": "NaN", "x": 1E999}',
        ),
    ),
    ("pythonic", "[see](http://x) f(a=1)", [Text("[see](http://x) f(a=1)")]),
    ("pythonic", "[1, 2, 3]", [Text("[1, 2, 3]")]),
    ("pythonic", "[f(x) for x in y]", [Text("[f(x) for x in y]")]),
    ("pythonic", "See [g()].", [Text("See [g()].")]),
    ("pythonic", '[g(b="x", c=[1, ', call("g", '{"b": "x", "c": [1, ')),
    (
        "olmo3",
        "<think>hm</think>\n<function_calls>\nf(a='x<y \"q\" é', n=1)\ng()\n</function_calls>",
        [Reasoning("hm"), *call("f", TWO), *call("g", NONE)],
    ),
    (
        "lfm2",
        "<|tool_call_start|>[f(a='x<y \"q\" é', n=1), g()]<|tool_call_end|>",
        [*call("f", TWO), *call("g", NONE)],
    ),
    (
        "lfm2",
        "<|tool_call_start|>[g()]<|tool_call_end|>Checking.",
        [*call("g", NONE), Text("Checking.")],
    ),
    (
        "lfm2",
        f'<|tool_call_start|>[{{"name": "f", "arguments": {TWO}}}]<|tool_call_end|>',
        call("f", TWO),
    ),
    (
        "function_gemma",
        '<start_function_call>call:f{a:<escape>x<y "q" é<escape>,n:1}<end_function_call>'
        "<start_function_call>call:g{}<end_function_call>",
        [*call("f", TWO), *call("g", NONE)],
    ),
    (
        "gemma4",
        '<|channel>thought\nhm\n<channel|>Well.<|tool_call>call:f{a:<|"|>x<y "q" é<|"|>,n:1}'
        "<tool_call|><|tool_call>call:g{}<tool_call|>",
        [Reasoning("hm"), Text("Well."), *call("f", TWO), *call("g", NONE)],
    ),
    (
        "gemma4",
        '<|tool_call>call:g{b:{c:[<|"|>1<|"|>,<|"|>2\\<|"|>],<|"|>d<|"|>:true},"e":"\\n",f:null}'
        "<tool_call|>",
        call(
            "g",
            '{"b": {"c": ["1", "2\\\\"], "d": true}, "e": "\\n", "f": null}',
        ),
    ),
    ("gemma4", "<|tool_call>call:g", [Text("<|tool_call>call:g")]),
    (
        "granite",
        f'<think>hm</think><response>Well.<|tool_call|>[{{"name": "f", "arguments": {TWO}}}, '
        '{"name": "g", "arguments": {}}]',
        [Reasoning("hm"), Text("Well."), *call("f", TWO), *call("g", NONE)],
    ),
    ("granite", "<response>x</response>", [Text("<response>x</response>")]),
    ("granite", "<think>hm</think>\n<response>x</response>", [Reasoning("hm"), Text("x")]),
    (
        "harmony",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "Right.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json"
        f"<|message|>{TWO}<|call|>",
        [Reasoning("hm"), Text("Right."), *call("f", TWO)],
    ),
    (
        "harmony",
        f" to=functions.f<|channel|>commentary json<|message|>{TWO}<|call|><|start|>assistant"
        " to=functions.g<|channel|>analysis <|constrain|>json<|message|><|call|>",
        [*call("f", TWO), *call("g", NONE)],
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b"
        "<|end|><|start|>assistant<|channel|>final<|message|> c <b>\n<|return|>",
        [Reasoning("a\nb"), Text(" c <b>\n")],
    ),
    ("harmony", "Just text: <|x", [Text("Just text: <|x")]),
    ("harmony", "<|channel|>commentary to=python code<|message|>1+1", [Text("1+1")]),
    ("harmony", "<|channel|>final Oh <|message", [Text("final Oh <|message")]),
    ("harmony", "<|channel|>anal", []),
    (
        "harmony",
        '<|channel|>commentary to=functions.f<|message|>{"a": oops<|end|>',
        call("f", '{"a": oops'),
    ),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        f"{TWO}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        [*call("f", TWO), *call("g", NONE)],
    ),
]
