"""Options of the data source: validated before any request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skipring.errors import InputError
from skipring.spark.offsets import Position
from skipring.spark.options import (
    READ_OPTIONS,
    WRITE_OPTIONS,
    PartitionSize,
    ReadOptions,
    WriteOptions,
)

NEEDED = {"supervisor": "127.0.0.1:7400", "subscribe": "orders"}
POSITION = {"store": "5eed", "epoch": 1, "offset": 42}


def parsed(*, is_stream: bool = False, **options: str) -> ReadOptions:
    return ReadOptions.parse({**NEEDED, **options}, is_stream=is_stream)


def test_batch_reads_everything_and_a_stream_new_publications_by_default() -> None:
    options = parsed()
    assert options.access.supervisors == ("127.0.0.1:7400",)
    assert (options.topics, options.starting, options.ending) == (
        ("orders",),
        "earliest",
        "latest",
    )
    assert (options.since, options.fails_on_data_loss) == (0, True)
    assert (options.offsets_max, options.size_of_partitions) == (None, PartitionSize())
    assert parsed(is_stream=True).starting == "latest"


def test_names_of_options_may_be_written_in_any_case() -> None:
    given = {"SUPERVISOR": "127.0.0.1:1", "Subscribe": "a", "FAILONDATALOSS": "FALSE"}
    assert not ReadOptions.parse(given, is_stream=False).fails_on_data_loss


def test_several_topics_and_supervisors_are_separated_by_commas() -> None:
    options = parsed(supervisor="127.0.0.1:1, 127.0.0.1:2", subscribe="orders, invoices,orders")
    assert options.access.supervisors == ("127.0.0.1:1", "127.0.0.1:2")
    assert options.topics == ("orders", "invoices")


def test_supervisor_may_be_set_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIPRING_SUPERVISOR", "127.0.0.1:9")
    options = ReadOptions.parse({"subscribe": "orders"}, is_stream=False)
    assert options.access.supervisors == ("127.0.0.1:9",)


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_positions_are_given_in_json(name: str) -> None:
    options = parsed(**{name: json.dumps({"orders": POSITION})})
    given = options.starting if name == "startingOffsets" else options.ending
    assert given == {"orders": Position(store="5eed", epoch=1, offset=42)}


def test_timestamp_is_in_milliseconds_and_reads_from_the_start() -> None:
    options = parsed(is_stream=True, startingTimestamp="1700000000123")
    assert (options.since, options.starting) == (1_700_000_000_123_000, "earliest")


def test_numeric_and_boolean_options_are_parsed() -> None:
    options = parsed(
        is_stream=True, maxOffsetsPerTrigger="1000", minPartitions="256", includeHeaders="true"
    )
    assert (options.offsets_max, options.size_of_partitions) == (1000, PartitionSize(256))


INVALID = {
    "unknown option 'suscribe'; did you mean \"subscribe\"": {"suscribe": "x"},
    "unknown option 'zzz'; the options are supervisor, ca": {"zzz": "x"},
    'option "subscribe" is missing': {"subscribe": " , "},
    "supervisor: no address given": {"supervisor": ""},
    "supervisor: expected HOST:PORT": {"supervisor": "nowhere"},
    "a topic has no control characters": {"subscribe": "a\nb"},
    "\"failOnDataLoss\" is true or false, not 'yes'": {"failOnDataLoss": "yes"},
    '"includeHeaders" is true or false': {"includeHeaders": "1"},
    '"minPartitions" is a number from 1 to 256': {"minPartitions": "0"},
    "\"minPartitions\" is a number from 1 to 256, not '257'": {"minPartitions": "257"},
    '"startingTimestamp" is a number from 0': {"startingTimestamp": "-1"},
    'give "startingOffsets" or "startingTimestamp", not both': {
        "startingTimestamp": "1",
        "startingOffsets": "earliest",
    },
    'startingOffsets is "earliest", "latest" or JSON': {"startingOffsets": "5"},
    'cannot be "latest"': {"startingOffsets": "latest"},
    'cannot be "earliest"': {"endingOffsets": "earliest"},
    "give one position for each of these topics": {
        "endingOffsets": json.dumps({"invoices": POSITION})
    },
    "the position of topic 'orders' is not {store, epoch, offset, chain}": {
        "startingOffsets": json.dumps({"orders": 5})
    },
    "Expected `int` >= 0 - at `$.epoch`": {
        "startingOffsets": json.dumps({"orders": {**POSITION, "epoch": -1}})
    },
    '"maxOffsetsPerTrigger" is for streams': {"maxOffsetsPerTrigger": "5"},
    "cert: missing; the CA, the certificate and its key go together": {"ca": "ca.pem"},
    "use a loopback address such as 127.0.0.1, or certificates": {"supervisor": "192.0.2.1:7400"},
}
INVALID_IN_STREAMS = {
    '"endingOffsets" is for batch reads': {"endingOffsets": "latest"},
    '"maxOffsetsPerTrigger" is a number from 1': {"maxOffsetsPerTrigger": "0"},
}


@pytest.mark.parametrize(
    ("is_stream", "sentence", "options"),
    [
        *((False, *each) for each in INVALID.items()),
        *((True, *each) for each in INVALID_IN_STREAMS.items()),
    ],
)
def test_invalid_read_option_is_refused_with_the_reason(
    is_stream: bool, sentence: str, options: dict[str, str]
) -> None:
    with pytest.raises(InputError) as caught:
        parsed(is_stream=is_stream, **options)
    assert sentence in str(caught.value)


def test_publisher_is_spark_by_default() -> None:
    options = WriteOptions.parse({"supervisor": "127.0.0.1:7400", "topic": "orders"})
    assert (options.topic, options.publisher, options.write_id) == ("orders", "spark", None)
    options = WriteOptions.parse(
        {"supervisor": "127.0.0.1:7400", "publisher": "job-7", "writeId": "2026-11-15"}
    )
    assert (options.topic, options.publisher, options.write_id) == (None, "job-7", "2026-11-15")


@pytest.mark.parametrize(
    ("sentence", "options"),
    [
        ("a node has 1 to 64 characters", {"publisher": "no name"}),
        ("a topic has 1 to 255 bytes", {"topic": ""}),
        ('did you mean "publisher"', {"publsher": "x"}),
        ("unknown option 'subscribe'", {"subscribe": "orders"}),
    ],
)
def test_invalid_write_option_is_refused_with_the_reason(
    sentence: str, options: dict[str, str]
) -> None:
    with pytest.raises(InputError) as caught:
        WriteOptions.parse({"supervisor": "127.0.0.1:7400", **options})
    assert sentence in str(caught.value)


def test_guide_has_a_row_for_every_option() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    for name in {*READ_OPTIONS, *WRITE_OPTIONS}:
        assert f"| `{name}` |" in guide
