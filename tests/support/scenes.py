"""Tests that are coroutines; each runs in its own event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any

DEADLINE_S = 120.0  # longer than the deadline of any step, so that the step is reported

Test = Callable[..., Coroutine[Any, Any, None]]


def in_loop(test: Test) -> Callable[..., None]:
    """Run a coroutine as a test."""

    @wraps(test)
    def run(**fixtures: Any) -> None:  # noqa: ANN401
        async def bounded() -> None:
            async with asyncio.timeout(DEADLINE_S):
                await test(**fixtures)

        asyncio.run(bounded())

    return run


def inside(
    opened: Callable[..., AbstractAsyncContextManager[Any]],
    **settings: Any,  # noqa: ANN401
) -> Callable[[Test], Callable[..., None]]:
    """Run a coroutine as a test inside an asynchronous context, opened with some settings.

    The first values of the context are the positional-only arguments of the test.
    Parameters of the context that have neither a setting nor a default are fixtures.
    """
    needed = [
        each
        for each in inspect.signature(opened).parameters.values()
        if each.name not in settings and each.default is each.empty
    ]

    def decorate(test: Test) -> Callable[..., None]:
        given = inspect.signature(test).parameters.values()
        own = [each for each in given if each.kind is not each.POSITIONAL_ONLY]
        count = len(given) - len(own)

        @wraps(test)
        def run(**fixtures: Any) -> None:  # noqa: ANN401
            async def play() -> None:
                words = settings | {each.name: fixtures[each.name] for each in needed}
                async with asyncio.timeout(DEADLINE_S), opened(**words) as found:
                    stage = found if isinstance(found, tuple) else (found,)
                    await test(*stage[:count], **{each.name: fixtures[each.name] for each in own})

            asyncio.run(play())

        names = {each.name: each.replace(kind=each.KEYWORD_ONLY) for each in (*needed, *own)}
        run.__signature__ = inspect.Signature(list(names.values()))  # type: ignore[attr-defined]
        return run

    return decorate
