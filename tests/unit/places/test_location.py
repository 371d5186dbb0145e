"""What names a place is a path or a URI, and tells nobody's credentials."""

import pytest

from rocketstore.errors import ConfigError
from rocketstore.pipeline.options import parse_options
from rocketstore.places.files import files_at
from rocketstore.places.location import joined, last_name


def test_names_are_joined_in_front_of_a_query():
    uri = "s3://bucket/stores/?endpoint_override=127.0.0.1:1&scheme=http"
    below = joined(uri, "a b", "c")
    assert below == "s3://bucket/stores/a%20b/c?endpoint_override=127.0.0.1:1&scheme=http"
    assert last_name(joined(uri, "a b")) == "a b"
    assert joined("/data/what?/", "x") == "/data/what?/x"
    assert files_at(below)[1] == "bucket/stores/a b/c"


@pytest.mark.parametrize(
    "location",
    [
        "s3://AKIAUSER:verysecret@bucket/store",
        "s3://AKIAUSER@bucket/store",
        "s3://bucket/store?secret_key=verysecret",
        "abfs://container:verysecret@account.dfs.core.windows.net/store",
        "s3://bucket/store?session_token=verysecret&region=eu",
    ],
)
def test_a_location_with_a_credential_is_refused_without_repeating_it(location):
    for attempt in (lambda: parse_options({"path": location}), lambda: files_at(location)):
        with pytest.raises(ConfigError, match="credential") as caught:
            attempt()
        told = f"{caught.value!r} {caught.value} {caught.value.hint} {vars(caught.value)}"
        assert "verysecret" not in told
        assert "AKIAUSER" not in told
