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
    "types": TOP_LEVEL["types"],
    "parsers.action_parsers": "ParseFunction",
    "parsers.actions": "AbstractParseFunction",
    "parsers.function_calls": "FN_REGEX_PATTERN FN_PARAM_REGEX_PATTERN",
    "parsers.structural_tags": f"Format {TOP_LEVEL['structural tags']}",
}
MEMBERS = {
    "Parser": "parse parse_answer get_assistant_messages get_system_messages get_user_messages "
    "get_tool_messages get_format_reward_func",
    "XMLParser": "parse parse_answer format get_format_str get_fields get_format_reward_func",
    "Rubric": "add_reward_func get_reward_func_names get_reward_funcs get_reward_weights "
    "call_reward_func score_rollout score_rollouts",
    "JudgeRubric": "judge",
    "MathRubric": "correct_answer_reward_func",
    "Environment": "format_prompt format_dataset get_dataset get_eval_dataset get_reward_funcs "
    "get_reward_weights get_model_response rollout run_rollouts run_rollout_with_semaphore "
    "a_generate generate evaluate make_dataset process_chat_format_vllm process_env_results "
    "process_completion_format_vllm process_env_results_vllm parse_chat_completion_logprobs "
    "parse_chat_completion_tokens parse_completion_logprobs parse_completion_tokens",
    "MultiTurnEnv": "setup_state is_completed env_response",
    "StatefulToolEnv": "update_tool_args",
    "EnvGroup": "get_env_for_task",
    "StructuralTag": "from_legacy_structural_tag from_json matches matched_prefix "
    "to_response_format",
    "Command": "invoke_format get_function_calling_tool",
    "JsonParser": "format_error_template to_structural_tag",
    "JSONSchemaVerifier": "verify as_reward_func",
}


@pytest.mark.parametrize("part", TOP_LEVEL)
def test_names_at_the_top_level(part: str) -> None:
    package = import_module("verifiers_nb")
    missing = [name for name in TOP_LEVEL[part].split() if not hasattr(package, name)]
    assert missing == []


@pytest.mark.parametrize("name", MEMBERS)
def test_members_of_a_class(name: str) -> None:
    found = getattr(import_module("verifiers_nb"), name)
    assert [member for member in MEMBERS[name].split() if not hasattr(found, member)] == []


@pytest.mark.parametrize("module", IN_A_MODULE)
def test_names_in_a_module(module: str) -> None:
    loaded = import_module(f"verifiers_nb.{module}")
    missing = [name for name in IN_A_MODULE[module].split() if not hasattr(loaded, name)]
    assert missing == []
