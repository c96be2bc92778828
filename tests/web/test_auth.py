"""Access to the dashboard."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.cookies import SimpleCookie

import pytest
from starlette.datastructures import Headers

from skipring.errors import InputError
from skipring.testing import Cluster
from skipring.web.auth import FOREIGN, NO_COOKIE, NOT_OUR_HOST, USED, TokenAuth
from skipring.web.server import Dashboard
from tests.support.scenes import in_loop, inside
from tests.web.asking import Answer, Visitor

UNUSED = ("127.0.0.1:9",)  # no supervisor listens here: the dashboard reports it and serves


@asynccontextmanager
async def visited() -> AsyncIterator[Visitor]:
    async with Dashboard(UNUSED) as dashboard:
        yield Visitor(dashboard)


def is_refused(answer: Answer, why: str) -> bool:
    return answer.status == 403 and answer.value == {"error": why}


@inside(visited)
async def test_request_without_cookie_is_refused(visitor: Visitor, /) -> None:
    guess = f"skipring-{visitor.address.port}=guessed"
    for path in ("/", "/api/settings", "/api/events?topic=t", "/static/app.js"):
        assert is_refused(await visitor.get(path), NO_COOKIE)
        assert is_refused(await visitor.get(path, Cookie=guess), NO_COOKIE)
        assert is_refused(await visitor.get(path, Cookie="a=b; c d;;=;"), NO_COOKIE)


@inside(visited)
async def test_one_time_address_sets_a_strict_cookie_and_redirects_without_the_token(
    visitor: Visitor, /
) -> None:
    answer = await visitor.enter()
    assert (answer.status, answer.headers["location"]) == (303, "/")
    (cookie,) = SimpleCookie(answer.headers["set-cookie"]).values()
    assert cookie["httponly"] is True
    assert cookie["samesite"] == "strict"
    assert (await visitor.get("/api/settings")).status == 200


@in_loop
async def test_one_time_address_works_once_and_is_replaced() -> None:
    entered = []
    async with Dashboard(UNUSED, on_entered=lambda: entered.append(dashboard.url)) as dashboard:
        first = Visitor(dashboard)
        await first.enter()
        again = Visitor(dashboard)
        again.address = first.address
        assert is_refused(await again.enter(), USED)
        assert entered == [dashboard.url]
        assert entered != [first.address.geturl()]
        other = Visitor(dashboard)
        assert (await other.enter()).status == 303
        assert (await other.get("/api/settings")).status == 200
        assert (await first.get("/api/settings")).status == 200


@in_loop
async def test_visitor_enters_although_the_output_is_closed() -> None:
    def fail() -> None:
        raise BrokenPipeError

    async with Dashboard(UNUSED, on_entered=fail) as dashboard:
        visitor = Visitor(dashboard)
        assert (await visitor.enter()).status == 303
        assert (await visitor.get("/api/settings")).status == 200


@inside(visited)
async def test_wrong_token_is_refused(visitor: Visitor, /) -> None:
    for token in ("", "x", "%C3%BC", "a" * 4000):
        answer = await visitor.get(f"/?token={token}")
        assert answer.status == 403
        assert "set-cookie" not in answer.headers


@inside(visited)
async def test_wrong_host_is_refused_despite_the_cookie(visitor: Visitor, /) -> None:
    await visitor.enter()
    for host in ("evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil:80"):
        for path in ("/api/settings", f"/?{visitor.address.query}"):
            assert is_refused(await visitor.get(path, Host=host), NOT_OUR_HOST)


@inside(visited)
async def test_foreign_origin_is_refused_despite_the_cookie(visitor: Visitor, /) -> None:
    await visitor.enter()
    for origin in ("http://evil.example", "null", "https://127.0.0.1", ""):
        assert is_refused(await visitor.get("/api/settings", Origin=origin), FOREIGN)
        answer = await visitor.ask("POST", "/api/publish?topic=t", b"{}", {"Origin": origin})
        assert is_refused(answer, FOREIGN)


@inside(visited)
async def test_changing_request_needs_an_origin(visitor: Visitor, /) -> None:
    await visitor.enter()
    assert is_refused(await visitor.ask("POST", "/api/publish?topic=t", b"{}"), FOREIGN)


@inside(visited)
async def test_every_answer_forbids_foreign_content(visitor: Visitor, /) -> None:
    refused, entered = await visitor.get("/"), await visitor.enter()
    answers = [refused, entered, await visitor.get("/"), await visitor.get("/nothing")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"


@inside(visited)
async def test_only_static_files_are_served(visitor: Visitor, /) -> None:
    await visitor.enter()
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static"):
        assert (await visitor.get(path)).status == 404


def test_token_is_compared_as_bytes() -> None:
    gate = TokenAuth()
    gate.open_at("127.0.0.1:7", 7)
    assert gate.enter("ü") is None  # comparing texts in constant time needs ASCII
    assert not gate.knows(Headers({"cookie": "skipring-7=\xfc"}))


@inside(visited)
async def test_cookies_of_other_servers_on_this_machine_do_no_harm(visitor: Visitor, /) -> None:
    await visitor.enter()
    ours = visitor.cookie
    assert ours is not None
    theirs = f"{ours.partition('=')[0]}=theirs"
    odd = 'x={"a":1}'
    for pair in ((ours, odd), (odd, ours), ("a[b]=c", f"{ours};"), (theirs, ours), (ours, theirs)):
        assert (await visitor.get("/api/settings", Cookie="; ".join(pair))).status == 200


@pytest.mark.parametrize("site", ["same-site", "cross-site"])
@inside(visited)
async def test_foreign_page_may_link_but_cannot_load_anything(
    visitor: Visitor, /, site: str
) -> None:
    await visitor.enter()
    loaded = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    opened = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
    ours = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    assert is_refused(await visitor.get("/api/timeline?topic=t", **loaded), FOREIGN)
    assert (await visitor.get("/", **opened)).status == 200
    assert (await visitor.get("/api/settings", **ours)).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
def test_dashboard_listens_on_loopback_only(host: str) -> None:
    with pytest.raises(InputError, match="this machine only"):
        Dashboard(UNUSED, host=host)


@pytest.mark.parametrize("topic", ["", "x" * 300, "a\nb"])
def test_invalid_topic_is_refused_at_the_start(topic: str) -> None:
    with pytest.raises(InputError, match="a topic has"):
        Dashboard(UNUSED, topic=topic)


@inside(visited)
async def test_port_in_use_is_refused(visitor: Visitor, /) -> None:
    with pytest.raises(InputError, match="cannot listen"):
        async with Dashboard(UNUSED, port=visitor.address.port):
            pass


@in_loop
async def test_two_dashboards_do_not_accept_each_others_cookies() -> None:
    async with Dashboard(UNUSED) as one, Dashboard(UNUSED) as two:
        visitor, other = Visitor(one), Visitor(two)
        await visitor.enter()
        other.cookie = visitor.cookie
        assert is_refused(await other.get("/api/settings"), NO_COOKIE)


@in_loop
async def test_two_dashboards_work_in_one_browser() -> None:
    async with Dashboard(UNUSED) as one, Dashboard(UNUSED) as two:
        visitor, other = Visitor(one), Visitor(two)
        jar: SimpleCookie = SimpleCookie()  # one jar for all ports, as in a browser
        for each in (visitor, other):
            jar.load((await each.enter()).headers["set-cookie"])
        cookies = "; ".join(f"{name}={each.value}" for name, each in jar.items())
        assert (await visitor.get("/api/settings", Cookie=cookies)).status == 200
        assert (await other.get("/api/settings", Cookie=cookies)).status == 200


@in_loop
async def test_chaos_is_unavailable_unless_enabled() -> None:
    async with Cluster(n=2) as cluster:
        supervisors = cluster.url.removeprefix("skipring://").split(",")
        async with Dashboard(supervisors) as dashboard:
            visitor = Visitor(dashboard)
            await visitor.enter()
            settings = (await visitor.get("/api/settings")).value
            assert settings["chaos"] is False
            assert "adversaries" not in settings
            answer = await visitor.post("/api/chaos?topic=news", {"damage": "database"})
            assert answer.status == 404
            assert cluster.nodes == ("n00", "n01")
