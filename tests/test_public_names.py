"""Every name of the documented contract resolves, at the top level or in its module."""

from importlib import import_module

import pytest

TOP_LEVEL = {
    "types": """ChatMessage Message Messages MessageType ModelResponse Info State SamplingArgs
        RewardFunc JsonPrimitive ChatCompletion ChatCompletionToolParam
        ChatCompletionMessageToolCall ChatCompletionRole Completion FunctionParameters
        FunctionDefinition GenerateInputs GenerateOutputs RolloutScore RolloutScores
        ProcessedOutputs""",
    "parsers and rubrics": """Parser ThinkParser XMLParser Rubric RubricGroup JudgeRubric
        ToolRubric MathRubric""",
    "environments": """Environment MultiTurnEnv SingleTurnEnv ToolEnv StatefulToolEnv TextArenaEnv
        ReasoningGymEnv EnvGroup EnvGroupRubric ActionEnv load_environment""",
    "tools, data, messages": """convert_func_to_oai_tool extract_boxed_answer extract_hash_answer
        load_example_dataset THINK_BOXED_SYSTEM_PROMPT BOXED_SYSTEM_PROMPT maybe_await
        sanitize_tool_calls messages_to_printable cleanup_messages
        print_prompt_completions_sample setup_logging python calculator search search_ddg ask""",
    "commands": "eval_environment ReportMeta compute_summary write_html_report",
    "training": """GRPOConfig GRPOTrainer grpo_defaults lora_defaults get_model get_tokenizer
        get_model_and_tokenizer""",
    "verifiers": """get_verifier register_verifier JSONStructureVerifier JSONSchemaVerifier
        RegexFormatVerifier BLEUVerifier ChainedVerifier""",
    "action parsers": """ParseFunction ActionParser ActionOnlyParser ThoughtActionParser
        XMLThoughtActionParser XMLFunctionCallingParser FunctionCallingParser EditFormat Identity
        JsonParser BashCodeBlockParser SingleBashCodeBlockParser Argument Command BASH_COMMAND
        FormatError FunctionCallingFormatError command_docs""",
    "structural tags": """StructuralTag StructuralTagItem AnyTextFormat ConstStringFormat
        JSONSchemaFormat GrammarFormat RegexFormat QwenXMLParameterFormat OrFormat SequenceFormat
        TagFormat TriggeredTagsFormat TagsWithSeparatorFormat""",
}
IN_A_MODULE = {
    "parsers.action_parsers": "ParseFunction",
    "parsers.actions": "AbstractParseFunction",
    "parsers.function_calls": "FN_REGEX_PATTERN FN_PARAM_REGEX_PATTERN",
    "parsers.structural_tags": "Format",
}


@pytest.mark.parametrize("part", TOP_LEVEL)
def test_names_at_the_top_level(part: str) -> None:
    package = import_module("verifiers_nb")
    missing = [name for name in TOP_LEVEL[part].split() if not hasattr(package, name)]
    assert missing == []


@pytest.mark.parametrize("module", IN_A_MODULE)
def test_names_in_a_module(module: str) -> None:
    loaded = import_module(f"verifiers_nb.{module}")
    missing = [name for name in IN_A_MODULE[module].split() if not hasattr(loaded, name)]
    assert missing == []
