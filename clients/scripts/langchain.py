"""langchain-openai and langgraph, with both APIs."""

from __future__ import annotations

from typing import Any

import openai
from checks import *
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command
from pydantic import BaseModel


def model(name: str = "main", **more: Any) -> ChatOpenAI:
    return ChatOpenAI(**{"model": name, "base_url": BASE, "api_key": TOKEN, "max_retries": 0, **more})


chat, responses = model(), model(use_responses_api=True)
in_session = model(default_headers=SESSION, include_response_headers=True)


class City(BaseModel):
    """A city."""

    name: str


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


def graph(llm: ChatOpenAI) -> Any:
    bound = llm.bind_tools([weather])
    made = StateGraph(MessagesState)
    made.add_node("ask", lambda state: {"messages": [bound.invoke(state["messages"])]})
    made.add_node("tools", ToolNode([weather]))
    made.add_edge(START, "ask")
    made.add_conditional_edges("ask", tools_condition)
    made.add_edge("tools", "ask")
    return made.compile()


@check("plain")
def plain() -> None:
    assert chat.invoke("hi").text == "You said: hi"
    assert responses.invoke("hi").text == "You said: hi"


@check("streamed")
def streamed() -> None:
    for llm in (chat, responses):
        assert "".join(chunk.text for chunk in llm.stream(WORDS)) == SPOKEN


@check("tool loop")
def tool_loop() -> None:
    for llm in (chat, responses):
        assert graph(llm).invoke({"messages": [HumanMessage(LOOP)]})["messages"][-1].text == SUNNY


@check("streamed tool loop")
def streamed_tool_loop() -> None:
    for llm in (chat, responses):
        pieces = graph(llm).stream({"messages": [HumanMessage(LOOP)]}, stream_mode="messages")
        texts = [piece.text for piece, _ in pieces if piece.type == "AIMessageChunk"]
        assert "".join(texts) == SUNNY, texts


@check("structured")
def structured() -> None:
    for llm in (chat, responses):
        assert llm.with_structured_output(City).invoke(CITY) == City(name="Rome")


@check("hand-off")
def hand_off() -> None:
    @tool
    def to_other() -> str:
        """Hand over to the other agent."""
        return ""

    def first(state: MessagesState) -> Command[str]:
        said = chat.bind_tools([to_other]).invoke(state["messages"])
        assert said.tool_calls[0]["name"] == "to_other"
        return Command(goto="other", update={"messages": [HumanMessage("from first")]})

    def other(state: MessagesState) -> dict[str, Any]:
        return {"messages": [chat.invoke(state["messages"])]}

    made = StateGraph(MessagesState)
    made.add_node("first", first, destinations=("other",))
    made.add_node("other", other)
    made.add_edge(START, "first")
    made.add_edge("other", END)
    said = made.compile().invoke({"messages": [HumanMessage("[[call to_other {}]]")]})
    assert said["messages"][-1].text == "You said: from first"


@check("images")
def images() -> None:
    recorded()
    picture = HumanMessage([{"type": "image", "base64": PNG, "mime_type": "image/png"}])
    chat.invoke([picture])
    responses.invoke([picture])
    assert recorded().count(PNG) == 2


@check("session")
def session() -> None:
    for _ in range(2):
        in_session.invoke("hi")
    assert in_session.invoke("[[history]]").text == "6"


@check("chain")
def chain() -> None:
    first = responses.invoke("one")
    name = first.response_metadata["id"]
    assert responses.invoke("[[history]]", previous_response_id=name).text == "3"
    following = model(use_responses_api=True, use_previous_response_id=True)
    said = following.invoke([HumanMessage("one"), first, HumanMessage("[[history]]")])
    assert said.text == "3"


@check("401")
def wrong_key() -> None:
    raises(openai.AuthenticationError, lambda: model(api_key=WRONG_KEY).invoke("hi"))


@check("404")
def unknown_model() -> None:
    error = raises(openai.NotFoundError, lambda: model(UNKNOWN).invoke("hi"))
    assert "scripted/scripted" in str(error)


@check("429")
def rate_limit() -> None:
    error = raises(openai.RateLimitError, lambda: chat.invoke(LIMITED))
    assert error.response.headers["retry-after"] == "7"


@check("too long")
def too_long() -> None:
    from langchain_core.exceptions import ContextOverflowError

    raises(ContextOverflowError, lambda: chat.invoke(TOO_LONG))


@check("usage")
def usage() -> None:
    for llm in (chat, responses, model(stream_usage=True)):
        used = llm.invoke(USED).usage_metadata
        assert (used["input_tokens"], used["output_tokens"]) == (9, 3)


@check("cancel")
def cancel() -> None:
    before = cancelled()
    stream = chat.stream(ENDLESS)
    next(stream)
    stream.close()
    until_cancelled(before)


@check("files")
def files() -> None:
    said = in_session.invoke(SEND)  # it drops `files`, and keeps the headers
    turn = get(f"/api/turns/{said.response_metadata['headers']['x-talaria-turn-id']}")
    assert turn["files"][0]["name"] == "a.txt"


@check("embeddings")
def embeddings() -> None:
    store = OpenAIEmbeddings(
        model="scripted/small", base_url=BASE, api_key=TOKEN, max_retries=0, check_embedding_ctx_length=False
    )
    assert store.embed_query("hi") == [2.0, 1.0]


run("langchain-openai", "langgraph")
