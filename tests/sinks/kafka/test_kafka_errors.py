"""Errors of the client become ours: retried or not, with a hint, without secrets."""

from __future__ import annotations

import ssl

import pytest
from kafka import errors as kafka_errors

from tailerd.errors import ConfigError, SinkError, SinkFencedError, SinkRefusedError
from tailerd.sinks.kafka.errors import kafka_calls, map_error

ALL = sorted(kafka_errors.kafka_errors.values(), key=lambda kind: str(kind.__name__))


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: str(kind.__name__))
def test_every_error_of_a_broker_is_one_of_ours_and_names_its_kind(kind: type[Exception]) -> None:
    ours = map_error(kind(), "Topic t was not written")
    assert isinstance(ours, SinkError)
    assert str(ours).startswith("Topic t was not written")
    if getattr(kind, "retriable", False):
        assert ours.retryable
    if not ours.retryable:
        assert ours.remedy


def test_a_producer_that_cannot_continue_is_explained_by_what_ended_it() -> None:
    reported = "Cannot perform send because at least one previous request has failed with errors."
    for kind, expected in (
        (kafka_errors.ProducerFencedError, SinkFencedError),
        (kafka_errors.TopicAuthorizationFailedError, SinkRefusedError),
    ):
        ours = map_error(kafka_errors.KafkaError(reported, kind()), "Topic t was not written")
        assert isinstance(ours, expected)
    assert type(map_error(kafka_errors.KafkaError(reported, None), "X")) is SinkError


def test_what_somebody_must_mend_is_not_tried_again() -> None:
    refused = (
        kafka_errors.TopicAuthorizationFailedError({"t"}),
        kafka_errors.TransactionalIdAuthorizationFailedError(),
        kafka_errors.SaslAuthenticationFailedError("no"),
        kafka_errors.MessageSizeTooLargeError(),
        kafka_errors.InvalidTopicError(),
        ssl.SSLError("certificate verify failed"),
    )
    for error in refused:
        ours = map_error(error, "X")
        assert isinstance(ours, SinkRefusedError), error
        assert not ours.retryable


def test_what_passes_is_tried_again() -> None:
    for error in (
        kafka_errors.NotEnoughReplicasError(),
        kafka_errors.NotLeaderForPartitionError(),
        kafka_errors.KafkaConnectionError("socket disconnected"),
        kafka_errors.KafkaTimeoutError("no answer"),
        kafka_errors.OutOfOrderSequenceNumberError(),
        kafka_errors.CoordinatorNotAvailableError(),
        ConnectionResetError("reset"),
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol (_ssl.c:1006)"),
        ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed (EOF) (_ssl.c:992)"),
        kafka_errors.KafkaConnectionError(
            "Handshake failed: EOF occurred in violation of protocol (_ssl.c:1006)"
        ),
    ):
        assert map_error(error, "X").retryable, error


def test_being_shut_out_is_told_apart() -> None:
    for error in (kafka_errors.ProducerFencedError(), kafka_errors.InvalidProducerEpochError()):
        assert isinstance(map_error(error, "X", is_transactional=True), SinkFencedError)


def test_options_that_do_not_fit_are_the_configurations_fault() -> None:
    error = kafka_errors.KafkaConfigurationError("delivery_timeout_ms is too small")
    assert isinstance(map_error(error, "X"), ConfigError)


def test_a_secret_that_a_message_repeats_is_not_shown() -> None:
    error = ValueError("bad password 'geheim' for user")
    assert "geheim" not in str(map_error(error, "X", secrets=("geheim", "")))


def test_errors_of_ours_pass_and_others_do_not_hide_bugs() -> None:
    own = ConfigError("mine")
    assert map_error(own, "X") is own
    with pytest.raises(ConfigError, match="mine"), kafka_calls("X"):
        raise own
    with pytest.raises(ZeroDivisionError), kafka_calls("X"):
        raise ZeroDivisionError
    with pytest.raises(SinkError, match="X: gone"), kafka_calls("X"):
        raise OSError("gone")


def test_of_a_refused_request_the_brokers_reason_is_told_and_not_the_request() -> None:
    answer = (
        "Request 'CreateTopicsRequest(version=7, topics=[CreatableTopic(name='t')])' failed with"
        " response 'CreateTopicsResponse(topics=[CreatableTopicResult(name='t', error_code=38,"
        " error_message='Unable to replicate the partition 3 time(s).')])'."
    )
    reported = map_error(
        kafka_errors.InvalidReplicationFactorError(answer), "Kafka cannot create the topic t"
    )
    assert reported.message == (
        "Kafka cannot create the topic t: [Error 38] InvalidReplicationFactorError: Unable to"
        " replicate the partition 3 time(s)."
    )
