"""Conversations → text, by the chat template of a tokenizer; and the forms that conversations are stored in."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import ConfigError, DataError, MissingColumnError
from penstock.extras import require
from penstock.sources.transforms import Transform

if TYPE_CHECKING:
    from penstock.types import Sample

Message = dict[str, Any]

# What writers of from/value conversations call the speakers.
ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "function": "tool",
    "tool": "tool",
    "system": "system",
}
_MESSAGE_FIELDS = ("messages", "conversations", "conversation")


class AppliesChatTemplate(Protocol):
    """A tokenizer of Hugging Face's, or anything else with that method."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Return the text of a conversation."""


class ChatTemplate:
    """A chat template in Jinja, as tokenizers bring them along, without a tokenizer. It runs in Jinja's sandbox.

    Args:
        template: The template.
        **variables: What the template may use beside the messages: `bos_token`, `eos_token` and the like.
    """

    def __init__(self, template: str, **variables: Any) -> None:
        self.template, self.variables = template, variables
        self._compiled: Any = None

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        """Return the text of a conversation. Options are variables of the template, such as `add_generation_prompt`."""
        options.pop("tokenize", None)
        if self._compiled is None:
            self._compiled = _compile(self.template)
        variables = {"add_generation_prompt": False, "tools": None, **self.variables, **options}
        return str(self._compiled.render(messages=conversation, **variables))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}


class ChatTemplateTransform(Transform, written_name="chat.ChatTemplateTransform/1"):
    """Writes the messages of a sample as text, by the chat template of a tokenizer.

    A template that fails is an error, as is a sample without messages. Messages with from and value get role and
    content, under the names that templates expect; their other keys stay.

    Args:
        tokenizer: A tokenizer with `apply_chat_template`, or a `ChatTemplate`.
        messages_field: Where the messages are; `conversations` and `conversation` are looked at, too.
        output_field: Where the text goes.
        tools: Descriptions of tools for the template.
        convert_from_value_format: Convert messages with from and value.
        drop_messages: Leave the messages out of the result.
        **template_kwargs: More variables of the template, such as `add_generation_prompt`.
    """

    def __init__(
        self,
        tokenizer: AppliesChatTemplate,
        messages_field: str = "messages",
        output_field: str = "text",
        tools: Any = None,
        convert_from_value_format: bool = True,
        drop_messages: bool = True,
        **template_kwargs: Any,
    ) -> None:
        self._tokenizer = _check(tokenizer)
        self._fields = list(dict.fromkeys((messages_field, *_MESSAGE_FIELDS)))
        self._output_field, self._tools = output_field, tools
        self._converts, self._drops = convert_from_value_format, drop_messages
        self._template_kwargs = template_kwargs

    def __call__(self, sample: Sample) -> Sample:
        """Return a sample with the text."""
        field = next((name for name in self._fields if is_conversation(sample.get(name))), None)
        if field is None:
            raise MissingColumnError(
                f"the sample has no messages: {', '.join(self._fields)} hold none, and its fields are"
                f" {', '.join(sample)}. Filter such samples out, or use MaybeApplyChatTemplate"
            )
        text = self.render(sample[field])
        kept = {name: value for name, value in sample.items() if not (self._drops and name == field)}
        return {**kept, self._output_field: text}

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        """Return the text of some messages."""
        if self._converts:
            messages = [as_role_message(message) for message in messages]
        return _render(self._tokenizer, messages, tools=self._tools, **{**self._template_kwargs, **options})

    def settings(self) -> Mapping[str, Any] | None:
        """Return the template and all else, if the template can be known."""
        template = getattr(self._tokenizer, "template", None) or getattr(self._tokenizer, "chat_template", None)
        if not isinstance(template, str):
            return None
        own = {name: value for name, value in vars(self).items() if name != "_tokenizer"}
        variables = getattr(self._tokenizer, "variables", None) or getattr(self._tokenizer, "special_tokens_map", None)
        return {**own, "template": template, "variables": dict(variables or {})}


class MaybeApplyChatTemplate(ChatTemplateTransform, written_name="chat.MaybeApplyChatTemplate/1"):
    """Writes what is a conversation as text, and leaves everything else alone.

    Messages become text as with `ChatTemplateTransform`. Of preference data, a prompt is written up to where the
    answer begins, and `chosen`, `rejected` and `completion` become what follows.
    """

    _answers = ("chosen", "rejected", "completion")

    def __call__(self, sample: Sample) -> Sample:
        """Return a sample in which conversations are text."""
        if any(is_conversation(sample.get(name)) for name in self._fields):
            return super().__call__(sample)
        made = dict(sample)
        prompt = sample.get("prompt")
        has_prompt = is_conversation(prompt)
        begin = self.render(prompt, add_generation_prompt=True) if has_prompt else ""  # type: ignore[arg-type]
        if has_prompt:
            made["prompt"] = begin
        for name in self._answers:
            if is_conversation(sample.get(name)):
                whole = self.render([*(prompt or ()), *sample[name]] if has_prompt else sample[name])
                if not whole.startswith(begin):
                    raise DataError(f"the chat template writes the prompt differently when {name!r} follows it")
                made[name] = whole[len(begin) :]
        return made


class ConvertToChatML(Transform, written_name="chat.ConvertToChatML/1"):
    """Converts messages with from and value to role and content; all other keys of a message stay.

    Args:
        input_field: Where the messages are.
        output_field: Where the converted ones go.
        role_mapping: Roles by the names of speakers, before the usual ones.
        use_default_mapping: Map the usual names: human to user, gpt, bot and model to assistant, function to tool.
    """

    def __init__(
        self,
        input_field: str = "conversations",
        output_field: str = "messages",
        role_mapping: Mapping[str, str] | None = None,
        use_default_mapping: bool = True,
    ) -> None:
        self._input_field, self._output_field = input_field, output_field
        self._roles = {**(ROLES if use_default_mapping else {}), **(role_mapping or {})}

    def __call__(self, sample: Sample) -> Sample:
        """Return a sample with the converted messages in place of the stored ones."""
        messages = [as_role_message(message, self._roles) for message in _messages(sample, self._input_field)]
        kept = {name: value for name, value in sample.items() if name != self._input_field}
        return {**kept, self._output_field: messages}

    def settings(self) -> Mapping[str, Any]:
        """Return the fields and the roles."""
        return dict(vars(self))


class ConvertInputOutputToChatML(Transform, written_name="chat.ConvertInputOutputToChatML/1"):
    """Converts turns with input and output, such as `[{"input": …, "output": …}]`, to messages, two for each turn."""

    def __init__(
        self,
        input_field: str = "conversation",
        output_field: str = "messages",
        user_role: str = "user",
        assistant_role: str = "assistant",
    ) -> None:
        self._input_field, self._output_field = input_field, output_field
        self._user_role, self._assistant_role = user_role, assistant_role

    def __call__(self, sample: Sample) -> Sample:
        """Return a sample with the messages in place of the turns."""
        messages = []
        for turn in _messages(sample, self._input_field):
            if turn.get("system"):
                messages.append({"role": "system", "content": turn["system"]})
            try:
                messages.append({"role": self._user_role, "content": turn["input"]})
                messages.append({"role": self._assistant_role, "content": turn["output"]})
            except KeyError as missing:
                raise MissingColumnError(f"a turn has no {missing}: it has {', '.join(turn)}") from None
        kept = {name: value for name, value in sample.items() if name != self._input_field}
        return {**kept, self._output_field: messages}

    def settings(self) -> Mapping[str, Any]:
        """Return the fields and the roles."""
        return dict(vars(self))


def as_role_message(message: Mapping[str, Any], roles: Mapping[str, str] = ROLES) -> Message:
    """Return a message with role and content; its other keys stay as they are."""
    if "role" in message:
        return dict(message)
    try:
        speaker, content = message["from"], message["value"]
    except KeyError:
        raise DataError(
            f"a message has neither role and content nor from and value: it has {', '.join(message)}"
        ) from None
    others = {name: value for name, value in message.items() if name not in ("from", "value")}
    return {"role": roles.get(speaker, speaker), "content": content, **others}


def is_conversation(value: Any) -> bool:
    """Return whether something is a list of messages."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) > 0
        and all(isinstance(message, Mapping) and ("role" in message or "from" in message) for message in value)
    )


def _render(tokenizer: AppliesChatTemplate, messages: Sequence[Message], **options: Any) -> str:
    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
    except Exception as error:
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise DataError(
            f"the chat template failed on messages with the roles {roles}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(text, str):
        raise DataError(f"the chat template returned a {type(text).__name__} instead of text")
    return text


def _messages(sample: Sample, field: str) -> Sequence[Mapping[str, Any]]:
    if field not in sample:
        raise MissingColumnError(f"the sample has no field {field!r}: it has {', '.join(sample)}")
    return sample[field]  # type: ignore[no-any-return]


def _check(tokenizer: Any) -> AppliesChatTemplate:
    if not hasattr(tokenizer, "apply_chat_template") or inspect.isclass(tokenizer):
        raise ConfigError(
            f"{type(tokenizer).__name__} has no apply_chat_template: pass a tokenizer of transformers, or a"
            " ChatTemplate"
        )
    return tokenizer  # type: ignore[no-any-return]


def _compile(template: str) -> Any:
    sandbox = require("jinja2.sandbox", extra="text", purpose="ChatTemplate")
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.undefined = require("jinja2", extra="text", purpose="ChatTemplate").Undefined
    environment.globals["raise_exception"] = _raise_exception
    try:
        return environment.from_string(template)
    except require("jinja2", extra="text", purpose="ChatTemplate").TemplateSyntaxError as error:
        raise ConfigError(
            f"line {error.lineno} of the chat template is not Jinja: {error}. Correct it there"
        ) from error


def _raise_exception(message: str) -> None:
    raise DataError(message)
