"""Configurations and their JSON."""

import pytest
from pydantic import ValidationError

from elmokit.config import BiLMConfig, CharCNNConfig, EncoderConfig, WordEmbeddingConfig
from elmokit.errors import ConfigError

ORIGINAL = CharCNNConfig(filters=((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)))


@pytest.mark.parametrize(
    "config",
    [
        BiLMConfig(tokens=ORIGINAL),
        BiLMConfig(tokens=CharCNNConfig(filters=((1, 2),), alphabet='\n的\0"😀\u2028')),
        BiLMConfig(tokens=WordEmbeddingConfig(num_words=9), encoder=EncoderConfig(cell_clip=None), language="zh"),
    ],
)
def test_json_gives_the_same_configuration_back(config):
    assert BiLMConfig.from_json(config.to_json()) == config


def test_the_published_sizes_follow_from_the_configuration():
    config = BiLMConfig(tokens=ORIGINAL)
    assert (ORIGINAL.num_filters, config.output_dim, config.num_layers) == (2048, 1024, 3)
    assert config.encoder.has_projection
    assert not EncoderConfig(projection_dim=8, cell_dim=8).has_projection


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("{", "Invalid JSON"),
        ("{}", "tokens"),
        ('{"tokens": {"kind": "char_cnn", "filters": []}}', "filters"),
        ('{"tokens": {"kind": "char_cnn", "filters": [[60, 2]]}}', "60 characters wide"),
        ('{"tokens": {"kind": "char_cnn", "filters": [[1, 2]]}, "encoder": {"cell_clip": -1}}', "cell_clip"),
        ('{"tokens": {"kind": "char_cnn", "filters": [[1, 2]]}, "encodr": {}}', "encodr"),
        ('{"tokens": {"kind": "char_cnn", "filters": [[1, 0]]}}', "filters"),
        ('{"tokens": {"kind": "char_cnn", "filters": [[1, 2]], "max_characters_per_token": 2}}', "max_characters"),
        ('{"tokens": {"kind": "char_cnn", "filters": [[1, 2]], "activation": "gelu"}}', "activation"),
        ('{"tokens": {"kind": "char_cnn", "filters": [[1, 2]], "alphabet": ""}}', "alphabet"),
        ('{"tokens": {"kind": "char_cnn", "filters": [[1, 2]], "alphabet": "aba"}}', "'a' is there twice"),
        ('{"tokens": {"kind": "char_cnn", "filters": [[1, 2]], "alphabet": "\\ud800"}}', "Invalid JSON"),
        ('{"tokens": {"kind": "lstm", "filters": [[1, 2]]}}', "tokens"),
        ('{"tokens": {"kind": "word_embedding", "num_words": 0}}', "num_words"),
        ('{"tokens": {"kind": "word_embedding", "num_words": 5}, "encoder": {"num_layers": 0}}', "num_layers"),
        ('{"tokens": {"kind": "word_embedding", "num_words": 5}, "encoder": {"proj_clip": NaN}}', "proj_clip"),
        ('{"tokens": {"kind": "word_embedding", "num_words": 5}, "encoder": {"proj_clip": 1e999}}', "proj_clip"),
    ],
)
def test_a_wrong_configuration_is_named_with_file_and_place(text, finding):
    with pytest.raises(ConfigError, match=r"my\.json is no elmokit configuration") as raised:
        BiLMConfig.from_json(text, source="my.json")
    assert finding in str(raised.value)


def test_a_model_of_bytes_is_written_as_before_there_were_alphabets():
    config = BiLMConfig(tokens=CharCNNConfig(filters=((1, 2),)))
    assert "alphabet" not in config.to_json()
    assert "alphabet" not in config.model_dump()["tokens"]
    assert BiLMConfig.from_json('{"tokens": {"kind": "char_cnn", "filters": [[1, 2]]}}') == config
    assert (config.tokens.num_characters, config.tokens.padding_id) == (261, 261)


def test_an_alphabet_is_as_large_as_16_bits_allow():
    largest = "".join(map(chr, range(0x4E00, 0x4E00 + 32_000)))
    tokens = CharCNNConfig(filters=((1, 2),), alphabet=largest)
    assert (tokens.num_characters, tokens.padding_id) == (32_006, 32_005)
    with pytest.raises(ValidationError, match="32000"):
        CharCNNConfig(filters=((1, 2),), alphabet=largest + "a")


def test_a_configuration_cannot_be_changed_and_can_be_a_key():
    config = BiLMConfig(tokens=ORIGINAL)
    with pytest.raises(ValidationError, match="frozen"):
        config.encoder.num_layers = 3
    assert {config: 1}[BiLMConfig(tokens=ORIGINAL)] == 1
