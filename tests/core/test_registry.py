"""Which backends there are: entry points, hooks, names, options, instances."""

import sys
import types

import pluggy
import pytest

from lqcd_core import BackendInfo, LatticeGeometry, Option, Request, hookimpl
from lqcd_core.backend import Backend, BoundBackend
from lqcd_core.errors import (
    BackendUnavailable,
    DuplicateBackendError,
    LQCDError,
    ParameterError,
    UnknownBackendError,
    UnknownOptionError,
)  # fmt: skip
from lqcd_core.precision import as_precision
from lqcd_core.registry import REGISTRY, PluginWarning, Registry, rank, registered

G = LatticeGeometry(T=4, Z=4, Y=4, X=4)


def request(**changes):
    given = dict(operator="wilson", precision=as_precision("double"), geometry=G)
    return Request(**{**given, **changes})


class Made:
    """A backend that counts how often it was made."""

    count = 0

    def __init__(self, **options):
        type(self).count += 1
        self.options = options

    def space(self, geometry, precision, n_rhs=1, parity=None):
        raise NotImplementedError

    def hopping(self, links, space):
        raise NotImplementedError


def explodes(**options):
    raise ZeroDivisionError("boom")


def no_device(**options):
    raise BackendUnavailable("no accelerator visible")


def no_methods(**options):
    return object()


def record(name="fake", load=f"{__name__}:Made", **more):
    return BackendInfo(name=name, load=load, **{"precisions": {"double"}, **more})


class Plugin:
    """A plugin of these records."""

    def __init__(self, *records):
        self.records = records

    @hookimpl
    def lqcd_register_backends(self):
        return self.records


class Point:
    """What importlib.metadata hands out for an entry point."""

    def __init__(self, name, plugin):
        self.name, self.plugin = name, plugin
        self.dist = types.SimpleNamespace(name=f"dist-of-{name}", version="1.2")

    def load(self):
        if isinstance(self.plugin, Exception):
            raise self.plugin
        return self.plugin


@pytest.fixture
def registry_of(monkeypatch):
    """A fresh registry that finds these entry points."""

    def make(**plugins):
        points = [Point(name, plugin) for name, plugin in plugins.items()]
        monkeypatch.setattr("lqcd_core.registry.entry_points", lambda group: points if group == "lqcd" else [])
        return Registry()

    return make


def test_the_program_finds_numpy_by_its_entry_point():
    info = REGISTRY.record("numpy")
    assert info.precisions >= {"double", "single"} and "lqcd-core" in info.origin


def test_a_record_is_loaded_only_when_used(registry_of):
    registry = registry_of(a=Plugin(record(load="no_such_module_anywhere:Backend")))
    assert list(registry.records()) == ["fake"]
    with pytest.raises(BackendUnavailable, match=r"cannot be imported: No module named 'no_such_module_anywhere'"):
        registry.load("fake")


@pytest.mark.parametrize(
    "broken",
    [
        ImportError("no runtime"), SyntaxError("bad"), RuntimeError("boom"),
    ],
    ids=lambda e: type(e).__name__,
)  # fmt: skip
def test_a_plugin_that_fails_to_load_warns_and_is_skipped(registry_of, broken):
    registry = registry_of(bad=broken, good=Plugin(record()))
    with pytest.warns(PluginWarning, match=r"bad \(from dist-of-bad 1.2\) was left out: " + type(broken).__name__):
        assert list(registry.records()) == ["fake"]
    assert str(broken) in registry.broken["bad (from dist-of-bad 1.2)"]


@pytest.mark.parametrize("answer", [None, [1], "numpy"], ids=repr)
def test_a_plugin_that_registers_nonsense_warns_and_is_skipped(registry_of, answer):
    class Bad:
        @hookimpl
        def lqcd_register_backends(self):
            return answer

    registry = registry_of(bad=Bad(), good=Plugin(record()))
    with pytest.warns(PluginWarning, match="bad"):
        assert list(registry.records()) == ["fake"]


def test_a_hook_with_a_wrong_signature_warns_and_leaves_nothing_behind(registry_of):
    class Mismatch:
        @hookimpl
        def lqcd_register_backends(self):
            return [record("half-registered")]

        @hookimpl
        def lqcd_rank_backends(self, question):
            return []

    registry = registry_of(bad=Mismatch(), good=Plugin(record()))
    with pytest.warns(PluginWarning, match="question"):
        assert list(registry.records()) == ["fake"]


def test_a_misspelt_hook_warns_and_leaves_nothing_behind(registry_of):
    class Misspelt:
        @hookimpl
        def lqcd_register_backend(self):
            return [record("never-asked")]

    registry = registry_of(bad=Misspelt(), good=Plugin(record()))
    with pytest.warns(PluginWarning, match="unknown hook 'lqcd_register_backend'"):
        assert list(registry.records()) == ["fake"]


def test_by_hand_a_wrong_plugin_is_an_error_and_leaves_nothing_behind():
    class Misspelt:
        @hookimpl
        def lqcd_register_backend(self):
            return []

    plugin, before = Misspelt(), set(REGISTRY.records())
    with pytest.raises(pluggy.PluginValidationError), registered(plugin):
        pass
    assert not REGISTRY.manager().is_registered(plugin) and set(REGISTRY.records()) == before


def test_two_backends_of_one_name_is_an_error_that_names_both(registry_of):
    registry = registry_of(first=Plugin(record()), second=Plugin(record()))
    with pytest.raises(
        DuplicateBackendError, match=r"'fake'.*first \(from dist-of-first.*second \(from dist-of-second"
    ):
        registry.records()


def test_one_plugin_behind_two_entry_points_is_registered_once(registry_of):
    plugin = Plugin(record())
    assert list(registry_of(a=plugin, b=plugin).records()) == ["fake"]


def test_an_unknown_name_lists_what_exists_and_the_nearest():
    with pytest.raises(UnknownBackendError, match=r"'nunpy'; did you mean 'numpy'\? Known: .*'numpy'") as caught:
        REGISTRY.record("nunpy")
    assert isinstance(caught.value, LookupError) and isinstance(caught.value, LQCDError)


# -- options and instances ---------------------------------------------------------------------------------------------


def even(value):
    return None if value % 2 == 0 else "must be even"


OPTIONS = {"threads": Option(help="worker threads"), "shards": Option(help="slabs", check=even)}


def test_wrong_options_are_refused_without_importing(registry_of):
    registry = registry_of(a=Plugin(record(load="no_such_module_anywhere:Backend", options=OPTIONS)))
    with pytest.raises(UnknownOptionError, match=r"'thread'; did you mean 'threads'"):
        registry.load("fake", {"thread": 2})
    with pytest.raises(ParameterError, match=r"shards=3 must be even"):
        registry.load("fake", {"shards": 3})
    assert "no_such_module_anywhere" not in sys.modules


def test_an_instance_is_made_once_per_name_and_options(registry_of):
    registry = registry_of(a=Plugin(record(options=OPTIONS), record("alias", options=OPTIONS, preset={"threads": 2})))
    Made.count = 0
    first = registry.load("fake", {"threads": 2})
    assert registry.load("fake", {"threads": 2}) is first and isinstance(first, BoundBackend)
    assert isinstance(first.instance, Backend)
    assert registry.load("fake", {"threads": 4}) is not first
    assert Made.count == 2


def test_an_alias_presets_options_and_the_user_goes_on_top(registry_of):
    registry = registry_of(a=Plugin(record("alias", options=OPTIONS, preset={"threads": 2})))
    assert registry.load("alias").instance.options == {"threads": 2}
    assert registry.load("alias", {"threads": 8}).instance.options == {"threads": 8}


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        ("explodes", "failed to start: ZeroDivisionError: boom"), ("no_device", "no accelerator visible"),
        ("no_methods", "lacks the method space or hopping"), ("not_there", "failed to start: AttributeError"),
    ],
)  # fmt: skip
def test_a_backend_that_cannot_start_says_why(registry_of, load, reason):
    registry = registry_of(a=Plugin(record(load=f"{__name__}:{load}")))
    with pytest.raises(BackendUnavailable, match=reason):
        registry.load("fake")


def test_unregistering_forgets_its_instances_and_keeps_the_others():
    plugin = Plugin(record())
    numpy = REGISTRY.load("numpy")
    with registered(plugin):
        first = REGISTRY.load("fake")
    with registered(plugin):
        assert REGISTRY.load("fake") is not first
    assert REGISTRY.load("numpy") is numpy


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(operator="overlap"), "has no operator 'overlap'"),
        (dict(precision=as_precision("bf16")), r"has no bf16 precision \(has double\)"),
        (dict(arrays="torch"), r"does not take torch arrays \(takes numpy\)"),
        (dict(features=frozenset({"autograd"})), "lacks autograd"),
        (dict(n_rhs=99), "takes at most 12 columns"),
    ],
    ids=str,
)
def test_a_record_answers_with_a_reason(changes, reason):
    info = record(accepts=lambda r: None if r.n_rhs <= 12 else "takes at most 12 columns")
    assert info.why_not(request()) is None
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(info.why_not(request(**changes)))


def test_a_record_that_fails_to_answer_gives_that_as_its_reason():
    assert "ZeroDivisionError" in record(accepts=lambda r: 1 / 0).why_not(request())


@pytest.mark.parametrize(
    "wrong",
    [
        dict(name="Has Capitals"), dict(load="no_colon"), dict(precisions={"quadruple"}), dict(features={"telepathy"}),
    ],
    ids=str,
)  # fmt: skip
def test_a_nonsensical_record_is_refused(wrong):
    with pytest.raises((ValueError, TypeError)):
        record(**wrong)


# -- order -------------------------------------------------------------------------------------------------------------


class Ranks:
    def __init__(self, answer):
        self.answer = answer

    @hookimpl
    def lqcd_rank_backends(self, request, names):
        return self.answer(request, names)


RECORDS = Plugin(
    record("low", rank=-1), record("high", rank=5), record("b"), record("a"), record("wrap", wraps=True, rank=9)
)


def test_order_is_rank_then_name_and_executors_are_left_out(registry_of):
    registry = registry_of(p=RECORDS)
    assert rank(request(), registry.records(), (), registry) == ["high", "a", "b", "low"]


def test_the_rank_hook_goes_before_rank_and_the_user_before_the_hook(registry_of):
    registry = registry_of(p=RECORDS, r=Ranks(lambda request, names: ["low", "unknown", "wrap"]))
    assert rank(request(), registry.records(), (), registry) == ["low", "high", "a", "b"]
    assert rank(request(), registry.records(), ("b", "unknown", "wrap"), registry) == ["b", "low", "high", "a"]


def test_the_rank_hook_sees_the_request(registry_of):
    registry = registry_of(p=RECORDS, r=Ranks(lambda request, names: ["b"] if request.n_rhs == 12 else None))
    assert rank(request(n_rhs=12), registry.records(), (), registry)[0] == "b"
    assert rank(request(), registry.records(), (), registry)[0] == "high"


@pytest.mark.parametrize("answer", [lambda request, names: 1 / 0, lambda request, names: 7])
def test_a_rank_hook_that_fails_warns_and_is_passed_over(registry_of, answer):
    registry = registry_of(p=RECORDS, r=Ranks(answer))
    with pytest.warns(PluginWarning, match="its ranking"):
        assert rank(request(), registry.records(), (), registry) == ["high", "a", "b", "low"]


def test_a_rank_hook_may_take_fewer_arguments(registry_of):
    class Short:
        @hookimpl
        def lqcd_rank_backends(self, names):
            return list(reversed(names))

    registry = registry_of(p=RECORDS, r=Short())
    assert rank(request(), registry.records(), (), registry) == ["low", "b", "a", "high"]
