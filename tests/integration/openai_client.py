"""What the `openai` client sees of a running server.

Usage: openai_client.py CHECK BASE_URL

CHECK is `answers` (the real model), `hopeless` (a server that fails for good), or `patient` (a
server that cannot answer yet). Ends with 0 if everything held.
"""

import sys

import openai

TOKYO = [{"role": "user", "content": "What is the capital of Japan?"}]


def check_whole(client):
    answer = client.chat.completions.create(
        model="any", messages=TOKYO, temperature=0, max_tokens=32
    )
    assert "Tokyo" in answer.choices[0].message.content, answer
    assert answer.choices[0].finish_reason == "stop", answer
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    return answer.choices[0].message.content


def check_stream(client, whole):
    stream = client.chat.completions.create(
        model="any",
        messages=TOKYO,
        temperature=0,
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, ends, usage, ids = "", [], None, set()
    for chunk in stream:
        ids.add(chunk.id)
        for choice in chunk.choices:
            text += choice.delta.content or ""
            if choice.finish_reason:
                ends.append(choice.finish_reason)
        usage = chunk.usage or usage
    assert text == whole, (text, whole)
    assert ends == ["stop"], ends
    assert len(ids) == 1, ids
    assert usage.completion_tokens > 0, usage


def check_choices(client):
    answer = client.chat.completions.create(
        model="any", messages=TOKYO, temperature=1.2, seed=3, n=2, max_tokens=24
    )
    assert [choice.index for choice in answer.choices] == [0, 1], answer
    assert answer.choices[0].message.content != answer.choices[1].message.content, answer


def check_logprobs(client):
    answer = client.chat.completions.create(
        model="any", messages=TOKYO, temperature=0, max_tokens=6, logprobs=True, top_logprobs=4
    )
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 6, entries
    for entry in entries:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 4, entry
    text = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert text == answer.choices[0].message.content, (text, answer)


def check_stop(client, whole):
    stop = whole[8:12]
    answer = client.chat.completions.create(
        model="any", messages=TOKYO, temperature=0, max_tokens=32, stop=["not there", stop]
    )
    assert answer.choices[0].message.content == whole[: whole.index(stop)], answer
    assert answer.choices[0].finish_reason == "stop", answer


def check_classic(client):
    answer = client.completions.create(model="any", prompt="1, 2, 3,", temperature=0, max_tokens=4)
    assert answer.choices[0].text, answer
    assert answer.object == "text_completion", answer


def check_models(client):
    models = client.models.list().data
    assert len(models) == 1 and models[0].id, models


def check_bad_request(client):
    try:
        client.chat.completions.create(model="any", messages=TOKYO, temperature=99)
    except openai.BadRequestError as error:
        assert error.param == "temperature", error
    else:
        raise AssertionError("temperature 99 was accepted")


def check_cancel(client):
    stream = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "Write a very long story."}],
        max_tokens=2000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for count, _ in enumerate(stream):
        if count == 5:
            break
    stream.close()


def answers(client):
    whole = check_whole(client)
    check_stream(client, whole)
    check_choices(client)
    check_logprobs(client)
    check_stop(client, whole)
    check_classic(client)
    check_models(client)
    check_bad_request(client)
    check_cancel(client)


def hopeless(client):
    try:
        client.chat.completions.create(model="any", messages=TOKYO, max_tokens=3)
    except openai.InternalServerError:
        return
    raise AssertionError("no error came")


def patient(client):
    client = client.with_options(max_retries=5)
    answer = client.chat.completions.create(model="any", messages=TOKYO, max_tokens=3)
    assert answer.choices[0].message.content, answer


def main():
    check, base_url = sys.argv[1:]
    client = openai.OpenAI(base_url=base_url, api_key="none", timeout=120)
    {"answers": answers, "hopeless": hopeless, "patient": patient}[check](client)
    print(f"openai {openai.__version__}: {check} held")


main()
