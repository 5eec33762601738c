"""Who serves a request: strictness, scopes, threads, coroutines, the environment, and the table of reasons."""

import asyncio
import threading

import pytest

import lqcd_core as lqcd
from lqcd_core import BackendInfo, GaugeField, LatticeGeometry, Request, WilsonDirac, hookimpl
from lqcd_core.errors import (
    BackendUnavailable,
    NoBackendError,
    ParameterError,
    UnknownBackendError,
    UnknownOptionError,
)  # fmt: skip
from lqcd_core.precision import as_precision
from lqcd_core.registry import REGISTRY, registered
from lqcd_core.selection import (
    choose,
    current_backend,
    explain_request,
    prefer_backends,
    preferred_backends,
    use_backend,
)  # fmt: skip

G = LatticeGeometry(T=2, Z=2, Y=2, X=2)
U = GaugeField.cold(G)


def unavailable(**options):
    raise BackendUnavailable("no NeuronCore visible")


def sentence(**options):
    raise BackendUnavailable("Three things are missing: a, b and c. ")


class Fake:
    def space(self, geometry, precision, n_rhs=1, parity=None):
        raise NotImplementedError

    def hopping(self, links, space):
        raise NotImplementedError

    def plan(self, request):
        return f"{request.n_rhs} columns a launch"


STARTED = []


def spy(**options):
    STARTED.append("spy")
    return Fake()


class Plugin:
    @hookimpl
    def lqcd_register_backends(self):
        common = dict(precisions={"double"})
        return [
            BackendInfo(name="absent", load=f"{__name__}:unavailable", rank=900, **common),
            BackendInfo(name="fast", load=f"{__name__}:Fake", rank=800, **common),
            BackendInfo(name="late", load=f"{__name__}:spy", rank=-900, **common),
            BackendInfo(name="executor", load=f"{__name__}:Fake", rank=1000, wraps=True, **common),
            BackendInfo(name="hermit", load=f"{__name__}:unavailable", rank=1001, wraps=True, **common),
            BackendInfo(name="talker", load=f"{__name__}:sentence", rank=850, **common),
        ]


@pytest.fixture(autouse=True)
def clean(session_backend, monkeypatch):
    monkeypatch.delenv("LQCD_BACKEND", raising=False)
    use_backend(None)
    STARTED.clear()


@pytest.fixture
def fakes():
    with registered(PLUGIN):
        yield


PLUGIN = Plugin()


def request(precision="double", **changes):
    return Request(operator="wilson", precision=as_precision(precision), geometry=G, **changes)


def name_now():
    named = current_backend()
    return named.name if named else None


# -- named: strict -----------------------------------------------------------------------------------------------------


def test_a_named_backend_serves_and_the_choice_says_who_named_it():
    with use_backend("numpy"):
        choice = choose(request())
    assert (choice.name, choice.why) == ("numpy", "named by use_backend")


def test_a_named_backend_that_cannot_serve_is_an_error_with_its_reason(fakes):
    with (
        use_backend("fast"),
        pytest.raises(BackendUnavailable, match=r"has no single precision.*falls back in silence"),
    ):
        choose(request("single"))
    with pytest.raises(BackendUnavailable, match="no NeuronCore visible"):
        WilsonDirac(mass=0.1).bind(U, backend="absent")


def test_what_the_machine_lacks_is_said_before_what_the_request_asks_too_much(fakes):
    for call in (lambda: choose(request("single"), "absent"), lambda: choose(request("single", n_rhs=3), "absent")):
        with pytest.raises(BackendUnavailable) as caught:
            call()
        text = str(caught.value)
        assert text.index("no NeuronCore visible. Besides, it has no single precision (has double).") > 0
        assert text.index("falls back in silence") < text.index("precision='double' is the widest that it has")
    with pytest.raises(BackendUnavailable) as caught:  # it starts: nothing is missing but the precision
        choose(request("single"), "fast")
    assert "Besides" not in str(caught.value) and "precision='double'" in str(caught.value)
    with pytest.raises(BackendUnavailable) as caught:  # the precision is not at fault
        choose(request(features=frozenset({"autograd"})), "absent")
    assert "lacks autograd" in str(caught.value) and "precision=" not in str(caught.value)


def test_an_executor_is_not_started_to_learn_what_else_is_wrong(fakes):
    with pytest.raises(BackendUnavailable, match="has no single precision") as caught:
        choose(request("single"), "hermit")
    assert "no NeuronCore" not in str(caught.value)


def test_the_name_in_the_call_goes_before_the_session(fakes):
    with use_backend("fast"):
        assert choose(request(), "numpy").name == "numpy"
        assert choose(request(), ("numpy", {})).why == "named by backend="


@pytest.mark.parametrize(
    "wrong", [3, ("numpy",), ("numpy", {}, 1), [], object()], ids=["number", "one", "three", "list", "object"]
)
def test_backend_takes_a_name_or_a_pair(wrong):
    with pytest.raises(ParameterError, match=r"a name or \(name, options\)"):
        choose(request(), wrong)


def test_use_backend_refuses_unknown_names_and_options_at_once():
    with pytest.raises(UnknownBackendError, match="did you mean 'numpy'"):
        use_backend("numpi")
    with pytest.raises(UnknownOptionError, match="has no option 'threads'"):
        use_backend("numpy", threads=2)
    with pytest.raises(ParameterError):
        use_backend(None, threads=2)
    assert name_now() is None


# -- scopes ------------------------------------------------------------------------------------------------------------


def test_a_block_ends(fakes):
    with use_backend("numpy"):
        with use_backend("fast"):
            assert name_now() == "fast"
        assert name_now() == "numpy"
    assert name_now() is None


def test_a_block_ends_after_an_exception():
    with pytest.raises(KeyError), use_backend("numpy"):
        raise KeyError
    assert name_now() is None


def test_none_in_a_block_returns_to_automatic_choice(monkeypatch):
    use_backend("numpy")
    monkeypatch.setenv("LQCD_BACKEND", "numpy")
    with use_backend(None):
        assert name_now() is None
    assert name_now() == "numpy"


def test_a_plain_call_inside_a_block_ends_with_it(fakes):
    with use_backend("numpy"):
        use_backend("fast")
        assert name_now() == "fast" and in_thread(name_now) is None
    assert name_now() is None


def test_an_unknown_feature_is_refused_with_the_nearest():
    with pytest.raises(UnknownOptionError, match="did you mean 'autograd'"):
        WilsonDirac(mass=0.1).bind(U, features=("autgrad",))


def in_thread(function):
    out = []
    thread = threading.Thread(target=lambda: out.append(function()))
    thread.start()
    thread.join()
    return out[0]


def test_a_plain_call_holds_for_threads_started_later():
    use_backend("numpy")
    assert in_thread(name_now) == "numpy"


def test_a_block_holds_in_its_own_thread_only():
    with use_backend("numpy"):
        assert in_thread(name_now) is None


def test_a_thread_speaks_for_itself_only(fakes):
    def work():
        use_backend("fast")
        return name_now()

    assert in_thread(work) == "fast"
    assert name_now() is None


def test_two_threads_hold_two_backends_at_once(fakes):
    inside, seen = threading.Barrier(2), {}

    def work(name):
        with use_backend(name):
            inside.wait(10)
            seen[name] = name_now()
            inside.wait(10)

    threads = [threading.Thread(target=work, args=(n,)) for n in ("numpy", "fast")]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen == {"numpy": "numpy", "fast": "fast"}


def test_coroutines_hold_their_own(fakes):
    async def block(name):
        with use_backend(name):
            await asyncio.sleep(0)
            return name_now()

    async def plain(name):
        use_backend(name)
        await asyncio.sleep(0)
        return name_now()

    async def main():
        found = await asyncio.gather(block("numpy"), block("fast"), plain("numpy"), plain("fast"))
        return found, name_now()

    assert asyncio.run(main()) == (["numpy", "fast", "numpy", "fast"], None)
    assert name_now() is None


def test_a_task_inherits_the_block_around_it():
    async def main():
        with use_backend("numpy"):
            return await asyncio.create_task(asyncio.to_thread(name_now))

    assert asyncio.run(main()) == "numpy"


# -- the environment ---------------------------------------------------------------------------------------------------


def fresh_session(function):
    """Run where nobody has spoken: a context and a session as a program finds them at its start."""
    import contextvars

    from lqcd_core import selection

    before = dict(selection._session)
    selection._session.update(named=selection._UNSET, preferred=selection._UNSET)
    try:
        return contextvars.Context().run(function)
    finally:
        selection._session.update(before)


def test_the_variable_names_the_session_backend(monkeypatch, fakes):
    monkeypatch.setenv("LQCD_BACKEND", "  fast ")
    assert fresh_session(lambda: choose(request())).why == "named by the environment variable LQCD_BACKEND"

    def spoken():
        with use_backend("numpy"):
            return name_now()

    assert fresh_session(spoken) == "numpy"


def test_an_empty_variable_names_nothing(monkeypatch):
    monkeypatch.setenv("LQCD_BACKEND", "  ")
    assert fresh_session(current_backend) is None


def test_an_unknown_name_in_the_variable_says_where_it_came_from(monkeypatch):
    monkeypatch.setenv("LQCD_BACKEND", "nunpy")
    with pytest.raises(UnknownBackendError, match=r"did you mean 'numpy'.*environment variable LQCD_BACKEND"):
        fresh_session(lambda: choose(request()))


# -- automatic ---------------------------------------------------------------------------------------------------------


def test_automatic_choice_goes_down_the_list_and_keeps_the_reasons(fakes):
    choice = choose(request())
    assert choice.name == "fast" and choice.why == "first in rank that can serve"
    assert ("absent", "no NeuronCore visible") in choice.reasons


def test_a_wish_is_passed_over_and_a_name_is_not(fakes):
    with prefer_backends("absent", "numpy"):
        assert preferred_backends() == ("absent", "numpy")
        assert choose(request()).name == "numpy"
    assert preferred_backends() == ()
    with pytest.raises(UnknownBackendError):
        prefer_backends("nunpy")


def test_an_executor_is_never_chosen_automatically(fakes):
    with prefer_backends("executor"):
        assert choose(request()).name != "executor"
    assert choose(request(), "executor").name == "executor"


def test_when_nobody_can_serve_every_reason_is_listed(fakes):
    with pytest.raises(NoBackendError) as caught:
        choose(request(features=frozenset({"autograd", "device_solve"})))
    text = str(caught.value)
    assert text.startswith("No installed backend can run 'wilson' in double on (2, 2, 2, 2)")
    for name in (n for n, info in REGISTRY.records().items() if not info.wraps):
        assert any(line.split()[0] == name for line in text.splitlines()[1:])
    assert "lacks" in text


# -- the table of reasons ----------------------------------------------------------------------------------------------


def test_explain_says_what_choose_would_do(fakes):
    told = explain_request(request())
    assert told.chosen == choose(request()).name == "fast"
    rows = dict(told.rows)
    assert rows["absent"] == "no NeuronCore visible"
    assert rows["fast"] == "chosen: first in rank that can serve (1 columns a launch)"
    assert "only used when named" in rows["executor"]
    assert set(rows) == set(REGISTRY.records())
    assert all(name in str(told) for name in rows)


def test_explain_starts_nothing_behind_the_chosen_one(fakes):
    assert "not started" in dict(explain_request(request()).rows)["late"] and not STARTED
    assert "not started" not in dict(explain_request(request(), start_all=True).rows)["late"] and STARTED == ["spy"]


def test_every_reason_ends_with_one_full_stop(fakes):
    told = explain_request(request(), start_all=True)
    assert dict(told.rows)["talker"].endswith("c. ")  # as the backend said it
    assert all(line.endswith(".") and not line.endswith("..") for line in str(told).splitlines()[1:])
    with pytest.raises(BackendUnavailable, match=r"b and c\. Nothing"):
        choose(request(), "talker")


def test_explain_of_a_named_backend_says_what_the_machine_lacks_too(fakes):
    row = dict(explain_request(request("single"), "absent").rows)["absent"]
    assert row == "no NeuronCore visible. Besides, it has no single precision (has double)"


def test_explain_with_a_named_backend(fakes):
    told = explain_request(request("single"), "fast")
    assert told.chosen is None and "has no single precision" in dict(told.rows)["fast"]
    told = explain_request(request(), "numpy")
    assert told.chosen == "numpy" and told.rows[0][1] == "chosen: named by backend="
    assert "'numpy' is named" in dict(told.rows)["fast"] and not STARTED


def test_explain_at_the_front_door_takes_an_operator_and_links():
    told = lqcd.explain(WilsonDirac(mass=0.1), U, precision="bf16", n_rhs=12, backend="numpy")
    assert told.request.precision.name == "bf16" and told.request.n_rhs == 12 and told.chosen == "numpy"


def test_bind_keeps_the_choice_and_rebind_keeps_the_backend():
    with use_backend("numpy"):
        m = WilsonDirac(mass=0.1).bind(U)
    again = m.rebind(precision="single")
    assert again.choice.name == "numpy" and again.precision.name == "single" and again.links is m.links
