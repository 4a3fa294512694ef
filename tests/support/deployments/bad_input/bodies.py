"""Bodies that are no JSON, or too large, whatever they ask."""

from __future__ import annotations

from tests.support.deployments.bad_input.case import CHAT, COMPLETIONS, BadInput


def bodies(model: str, max_body_bytes: int) -> list[BadInput]:
    start = f'{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}]'.encode()

    def body(name: str, content: bytes, *says: str, path: str = CHAT) -> BadInput:
        return BadInput(name, path, content, None, says, code="invalid_json")

    return [
        body("empty body", b"", "empty"),
        body("empty body of a completion", b"", "empty", path=COMPLETIONS),
        body("cut JSON", start, "not valid JSON"),
        body("trailing comma", start + b",}", "not valid JSON"),
        body("two objects", start + b"}{}", "not valid JSON"),
        body("form data", b"model=x&prompt=y", "not valid JSON"),
        body("array", b"[]", "JSON object", "array"),
        body("null", b"null", "JSON object", "null"),
        body("string", b'"hello"', "JSON object", "string"),
        body("number", b"5", "JSON object", "number"),
        body("boolean", b"true", "JSON object", "boolean"),
        body("invalid UTF-8", b'{"model":"\xff\xfe"}', "UTF-8", "byte 10"),
        body("cut UTF-8 character", b'{"model":"\xe2\x82"}', "UTF-8"),
        body("UTF-16", '{"model":"x"}'.encode("utf-16"), "UTF-8"),
        body("lone surrogate", b'{"model":"\\ud800"}', "not valid JSON"),
        body("NaN", start + b',"temperature":NaN}', "NaN"),
        body("Infinity", start + b',"temperature":Infinity}', "Infinity"),
        body("minus Infinity", start + b',"top_p":-Infinity}', "-Infinity"),
        body("float overflow", start + b',"temperature":1e999}', "1e999"),
        body("integer of 5000 digits", start + b',"seed":' + b"9" * 5000 + b"}", "not valid JSON"),
        body("deep nesting", start + b',"user":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "deep"),
        body("key twice", start + b',"seed":1,"seed":2}', '"seed"', "twice"),
        body(
            "stream_options twice",
            start + b',"stream":true,"stream_options":{},"stream_options":{}}',
            '"stream_options"',
            "twice",
        ),
        BadInput(
            "huge body",
            CHAT,
            start + b',"user":"' + b"x" * max_body_bytes + b'"}',
            None,
            ("larger than", str(max_body_bytes)),
            status=413,
            code="body_too_large",
            parsing=False,
        ),
    ]
