// Server-sent events of a fetched response: objects with the event's data, or a comment.

export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const text = line.endsWith("\r") ? line.slice(0, -1) : line;
        if (text.startsWith(":")) yield { comment: text.slice(1).trim() };
        else if (text.startsWith("data:")) yield { data: text.slice(5).trimStart() };
      }
    }
  } finally {
    await reader.cancel();
  }
}
