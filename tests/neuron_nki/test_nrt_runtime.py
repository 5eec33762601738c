"""The ctypes wrapper against a stand-in libnrt: states, names, sizes, faults, threads, leaks. No device is used."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

SUPPORT = Path(__file__).parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

import nki_machine  # noqa: E402
import nki_neff  # noqa: E402
from lqcd_backends.neuron.nki import driver, libnrt, status  # noqa: E402
from lqcd_backends.neuron.nki.launch import LibnrtExecutor  # noqa: E402
from lqcd_backends.neuron.nki.spec import KernelSpec, TensorArg  # noqa: E402

from lqcd_core.errors import BackendUnavailable  # noqa: E402


def spec_of(name="add_scaled", n=8, **constants):
    x, s = (4, n), (1, 1)
    inputs = {
        "add_scaled": [("x", x), ("y", x), ("scalars", s)], "sum_and_difference": [("x", x), ("y", x)], "passed": [("x", x)],
        "broken": [("x", x)], "not_a_number": [("x", x)],
    }[name]  # fmt: skip
    outputs = 2 if name == "sum_and_difference" else 1
    return KernelSpec(
        name=name, function=f"toy_kernels:{name}", inputs=[TensorArg(a, shape) for a, shape in inputs],
        outputs=[TensorArg(f"output_{k}", x) for k in range(outputs)], constants=constants,
    )  # fmt: skip


def executor_of(asynchronous=False, core=0):
    run = libnrt.runtime()
    return LibnrtExecutor(run, driver.KernelStore(driver.Compiler("trn2"), run.label), core, asynchronous)


@pytest.fixture(params=[False, True], ids=["synchronous", "asynchronous"])
def executor(request):
    with nki_machine.machine() as lib:
        made = executor_of(request.param)
        made.lib = lib
        yield made


def arrays(n=8):
    rng = np.random.default_rng(3)
    return rng.normal(size=(2, 4, n)).astype(np.float32)


def test_a_kernel_runs_with_buffers_and_scalars(executor):
    x, y = arrays()
    launch = executor.launch(spec_of())
    hx, hy = executor.place(x), executor.place(y)
    results = [launch(hx, hy, np.full((1, 1), a, np.float32))[0] for a in (2.0, -1.0, 0.5)]
    for a, h in zip((2.0, -1.0, 0.5), results):
        np.testing.assert_array_equal(executor.fetch(h, x.shape, "float32"), y + np.float32(a) * x)
    (two, minus) = executor.launch(spec_of("sum_and_difference"))(hx, hy)
    np.testing.assert_array_equal(executor.fetch(minus, x.shape, "float32"), x - y)
    np.testing.assert_array_equal(executor.fetch(two, x.shape, "float32"), x + y)


def test_tensors_and_sets_are_made_once_and_used_again(executor):
    x, y = arrays()
    launch = executor.launch(spec_of())
    hx, hy = executor.place(x), executor.place(y)
    one = np.ones((1, 1), np.float32)
    for _ in range(4):
        hy = launch(hx, hy, one)[0]
    executor.synchronize()
    made = [executor.lib.lqcd_standin_count(w) for w in (b"made_tensors", b"made_sets")]
    for _ in range(50):
        hy = launch(hx, hy, one)[0]
    executor.synchronize()
    after = [executor.lib.lqcd_standin_count(w) for w in (b"made_tensors", b"made_sets")]
    # Two vectors take turns (three while a scheduled launch holds one); scalar tensors take turns too when scheduled.
    assert after[0] == made[0]
    assert executor.asynchronous or after[1] == made[1]
    np.testing.assert_allclose(executor.fetch(hy, x.shape, "float32"), y + 54 * x, rtol=1e-4, atol=1e-4)


def test_everything_is_given_back_at_close(executor):
    x, y = arrays()
    launch = executor.launch(spec_of())
    kept = launch(executor.place(x), executor.place(y), np.ones((1, 1), np.float32))
    assert executor.runtime.live()["models"] == 1
    executor.synchronize()
    executor.runtime.close()
    assert nki_machine.counts(executor.lib) == dict.fromkeys(
        ("tensors", "sets", "models", "infos", "use_after_free"), 0
    )
    executor.runtime.close()  # again: nothing
    del kept  # a buffer let go after close touches nothing
    assert nki_machine.counts(executor.lib)["use_after_free"] == 0
    with pytest.raises(status.NeuronStateError, match="closed"):
        executor.place(x)
    with pytest.raises(status.NeuronStateError, match="start a new process"):
        libnrt.runtime()


def test_a_thousand_loads_and_unloads_leak_nothing():
    with nki_machine.machine() as lib:
        run = libnrt.runtime()
        spec = spec_of()
        tensors = [[(a.name, a.shape, a.dtype) for a in group] for group in (spec.inputs, spec.outputs)]
        neff = nki_neff.pack(spec.function, *tensors, {}, "trn2", 1)
        for k in range(1000):
            model = run.load(neff, k % 2)
            assert [t.name for t in model.tensors] == ["x", "y", "scalars", "output_0"]
            run.unload(model)
        assert nki_machine.counts(lib) == dict.fromkeys(("tensors", "sets", "models", "infos", "use_after_free"), 0)
        executor = executor_of()
        x = arrays()[0]
        for k in range(20):
            passed = executor.launch(spec_of("passed", factor=k))
            assert executor.fetch(passed(executor.place(x))[0], x.shape, "float32")[0, 0] == k * x[0, 0]
            executor.unload()
        assert nki_machine.counts(lib) == dict.fromkeys(("tensors", "sets", "models", "infos", "use_after_free"), 0)


def test_buffers_of_a_pool_come_back_when_memory_is_short():
    with nki_machine.machine(environment={"LQCD_STANDIN_NRT_HBM": "4096"}) as lib:
        executor = executor_of()
        held = executor.place(np.zeros(3000, np.uint8))
        del held
        again = executor.place(np.zeros(2000, np.uint8))  # fits only without the pooled 3000
        assert lib.lqcd_standin_count(b"tensors") == 1
        with pytest.raises(MemoryError, match=r"3,000 B for 'field' on core 0, 2,000 of 4,096 B in use"):
            executor.place(np.zeros(3000, np.uint8))
        assert executor.fetch(again, (2000,), "uint8").sum() == 0


CODES = [c for c in status.STATUS if c not in (0, 1003)]


@pytest.mark.parametrize("code", CODES)
def test_each_status_of_a_launch_raises_its_class(code, executor):
    if code == 7 and executor.asynchronous:
        pytest.skip("a full queue is waited for: its own test")
    launch, x = executor.launch(spec_of("passed")), arrays()[0]
    buffer = executor.place(x)
    nki_machine.fault(executor.lib, "nrta_execute" if executor.asynchronous else "nrt_execute", code)
    with pytest.raises(status.STATUS[code].error) as caught:
        executor.fetch(launch(buffer)[0], x.shape, "float32")
    assert caught.value.code == code and "passed" in str(caught.value)
    np.testing.assert_array_equal(executor.fetch(launch(buffer)[0], x.shape, "float32"), x)  # the next one is fine
    assert nki_machine.counts(executor.lib)["use_after_free"] == 0


@pytest.mark.parametrize("function", ["nrt_load", "nrt_get_model_tensor_info", "nrt_tensor_allocate", "nrt_tensor_write", "nrt_tensor_read",
                                      "nrt_allocate_tensor_set", "nrt_add_tensor_to_tensor_set"])  # fmt: skip
def test_a_fault_anywhere_raises_and_leaks_nothing(function):
    with nki_machine.machine() as lib:
        executor, x = executor_of(), arrays()[0]

        def work():
            return executor.fetch(executor.launch(spec_of("passed"))(executor.place(x))[0], x.shape, "float32")

        nki_machine.fault(lib, function, 1)
        with pytest.raises(status.NeuronRuntimeError, match=f"{function} returned 1"):
            work()
        np.testing.assert_array_equal(work(), x)
        executor.runtime.close()
        assert nki_machine.counts(lib) == dict.fromkeys(("tensors", "sets", "models", "infos", "use_after_free"), 0)


def test_a_nan_is_a_warning_with_the_result(executor):
    x = arrays()[0]
    with pytest.warns(status.NumericalWarning, match="look for NaN"):
        y = executor.fetch(executor.launch(spec_of("not_a_number"))(executor.place(x))[0], x.shape, "float32")
    assert np.isnan(y).all()


def test_a_short_read_is_never_a_result(executor):
    x = arrays()[0]
    buffer = executor.place(x)
    executor.lib.lqcd_standin_short_read(1)
    with pytest.raises(status.NeuronRuntimeError, match="nrt_tensor_read"):
        executor.fetch(buffer, x.shape, "float32")


def test_a_slow_launch_times_out(monkeypatch):
    with nki_machine.machine() as lib:
        executor, x = executor_of(), arrays()[0]
        launch, buffer = executor.launch(spec_of("passed")), executor.place(x)
        lib.lqcd_standin_delay(1_100_000)
        monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "1")
        with pytest.raises(TimeoutError, match="NEURON_RT_EXEC_TIMEOUT"):
            launch(buffer)


def test_close_waits_for_what_is_scheduled():
    with nki_machine.machine() as lib:
        executor, x = executor_of(asynchronous=True), arrays()[0]
        launch, buffer = executor.launch(spec_of("passed")), executor.place(x)
        lib.lqcd_standin_delay(20_000)
        kept = [launch(buffer) for _ in range(4)]
        executor.runtime.close()
        assert lib.lqcd_standin_count(b"launches") == 4 and len(kept) == 4
        assert nki_machine.counts(lib) == dict.fromkeys(("tensors", "sets", "models", "infos", "use_after_free"), 0)


def test_a_full_queue_is_waited_for():
    with nki_machine.machine() as lib:
        executor, x = executor_of(asynchronous=True), arrays()[0]
        launch, buffer = executor.launch(spec_of("passed", factor=2)), executor.place(x)
        launch(buffer)
        nki_machine.fault(lib, "nrta_execute_schedule", 7)
        np.testing.assert_array_equal(executor.fetch(launch(buffer)[0], x.shape, "float32"), 2 * x)


def test_scheduled_launches_run_in_order_and_scalars_do_not_overtake():
    with nki_machine.machine() as lib:
        executor = executor_of(asynchronous=True)
        x, y = arrays()
        launch, hx, h = executor.launch(spec_of()), executor.place(x), executor.place(y)
        lib.lqcd_standin_delay(200)
        factors = np.arange(60, dtype=np.float32)
        for a in factors:
            h = launch(hx, h, np.full((1, 1), a, np.float32))[0]
        want = y.copy()
        for a in factors:
            want = want + a * x
        np.testing.assert_array_equal(executor.fetch(h, x.shape, "float32"), want)
        assert lib.lqcd_standin_count(b"launches") == 60


def test_without_the_asynchronous_functions_the_option_is_refused():
    with nki_machine.machine(flags=("-DLQCD_STANDIN_WITHOUT_ASYNC",)):
        assert not libnrt.runtime().has_async
        executor_of()
        with pytest.raises(BackendUnavailable, match="nrta_"):
            executor_of(asynchronous=True)


def test_wrong_names_sizes_and_cores_are_refused(executor):
    x = arrays()[0]
    launch = executor.launch(spec_of("passed"))
    with pytest.raises(status.NeuronCallError, match="takes 1 inputs"):
        launch()
    with pytest.raises(status.NeuronCallError, match="got a buffer"):
        launch(executor.place(x[:2]))
    with pytest.raises(status.NeuronCallError, match="has the shape"):
        launch(x[:2])
    run = executor.runtime
    there, elsewhere = run.allocate(128, 0, "a"), run.allocate(128, 1, "b")
    lib = run.library
    lib.nrt_tensor_copy.restype = ctypes.c_int
    assert lib.nrt_tensor_copy(there.handle, 0, elsewhere.handle, 0, 128) == 2  # no copies between cores
    model = executor.launch(spec_of("passed")).model
    for bad in ({"z": there}, {"x": elsewhere}, {"x": there, "more": there}, {"x": run.allocate(64, 0, "short")}):
        with pytest.raises(status.NeuronCallError, match="nrt_execute returned 2"):
            run.execute(model, run.tensor_set(bad), run.tensor_set({"output_0": there}))
    with pytest.raises(status.NeuronCallError, match="bytes 100 to 200"):
        run.read(there, np.empty(100, np.uint8), 100)
    run.free(there)
    with pytest.raises(status.NeuronCallError, match="was freed"):
        run.write(there, np.zeros(4, np.uint8))
    with pytest.raises(BackendUnavailable, match="0 to 1"):
        executor_of(core=2)
    assert nki_machine.counts(executor.lib)["use_after_free"] == 0


def test_a_neff_of_other_shapes_or_of_a_real_compiler_is_refused():
    with nki_machine.machine() as lib:
        run, executor = libnrt.runtime(), executor_of()
        good = spec_of("passed")
        other = nki_neff.pack(
            good.function, [("x", (4, 9), "float32")], [("output_0", (4, 9), "float32")], {}, "trn2", 1
        )
        executor.store.neff = lambda spec: other
        with pytest.raises(status.NeuronCallError, match=r"should be \(4, 8\) of float32"):
            executor.launch(good)
        named = nki_neff.pack(
            good.function, [("z", (4, 8), "float32")], [("output_0", (4, 8), "float32")], {}, "trn2", 1
        )
        executor.store.neff = lambda spec: named
        with pytest.raises(status.NeuronCallError, match="no input 'x'; it has 'z'"):
            executor.launch(good)
        with pytest.raises(BackendUnavailable, match="UNSUPPORTED_NEFF_VERSION"):
            run.load(other.replace(b"standin/", b"network/"), 0)
        with pytest.raises(BackendUnavailable, match="option target"):
            run.load(nki_neff.pack(good.function, [], [], {}, "trn1", 1), 0)
        with pytest.raises(status.NeuronCallError):
            run.load(nki_neff.pack(good.function, [], [], {}, "trn2", 2), 0)
        assert lib.lqcd_standin_count(b"models") == 0


def test_an_input_that_is_also_written_is_found_under_its_suffix():
    with nki_machine.machine():
        executor, x = executor_of(), arrays()[0]
        good = spec_of("passed")
        executor.store.neff = lambda spec: nki_neff.pack(
            good.function, [("x.must_alias_input", (4, 8), "float32")], [("output_0", (4, 8), "float32")], {}, "trn2", 1
        )
        np.testing.assert_array_equal(
            executor.fetch(executor.launch(good)(executor.place(x))[0], x.shape, "float32"), x
        )


def test_a_failing_kernel_is_an_error_and_not_a_result(executor):
    x = arrays()[0]
    with pytest.raises(status.NeuronRuntimeError, match="1004"):
        executor.fetch(executor.launch(spec_of("broken"))(executor.place(x))[0], x.shape, "float32")
    assert isinstance(nki_machine.FAILURES[0], FloatingPointError)


def test_two_threads_share_a_core(executor):
    launch = executor.launch(spec_of())
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(2, 4, 8)).astype(np.float32)
        try:
            hx, h, want = executor.place(x), executor.place(y), y
            for k in range(60):
                a = np.float32(seed + k)
                h, want = launch(hx, h, np.full((1, 1), a, np.float32))[0], want + a * x
            np.testing.assert_array_equal(executor.fetch(h, x.shape, "float32"), want)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(s,)) for s in (1, 2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures
    assert nki_machine.counts(executor.lib)["use_after_free"] == 0


def _in_child(queue):
    try:
        libnrt.runtime()
        queue.put("served")
    except status.NeuronStateError as error:
        queue.put(str(error))


def test_a_forked_child_is_refused_and_the_parent_goes_on():
    with nki_machine.machine() as lib, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        executor, x = executor_of(), arrays()[0]
        buffer = executor.place(x)
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=_in_child, args=(queue,))
        child.start()
        said = queue.get(timeout=30)
        child.join(30)
        assert "spawn" in said and "forked" in said, said
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:  # the library itself answers a child with 1, whatever it asks
            value = lib.nrt_allocate_tensor_set(ctypes.byref(ctypes.c_void_p()))
            os.write(write, bytes([value]))
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(read, 1) == b"\x01"
        np.testing.assert_array_equal(executor.fetch(buffer, x.shape, "float32"), x)


STATES = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
import nki_machine
path = nki_machine.build()
lib = nki_machine.library(path)
null = ctypes.byref(ctypes.c_void_p())
print(lib.nrt_allocate_tensor_set(null))
print(lib.nrt_init(1, b"", b""))
lib.nrt_close()
print(lib.nrt_allocate_tensor_set(null), lib.nrt_init(1, b"", b""))
"""


def test_the_stand_in_keeps_the_states_of_the_runtime():
    done = subprocess.run([sys.executable, "-c", STATES, str(SUPPORT)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["13", "0", "14", "14"]


OWNER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np, nki_machine
sys.path.insert(0, os.path.dirname(sys.argv[2]))
from test_nrt_runtime import executor_of, spec_of, arrays
with nki_machine.machine(environment={"LQCD_STANDIN_NRT_LOCKS": sys.argv[3]}) as lib:
    executor, x = executor_of(), arrays()[0]
    launch, buffer = executor.launch(spec_of("passed")), executor.place(x)
    lib.lqcd_standin_delay(2000)
    print("running", flush=True)
    while True:
        launch(buffer)
"""


def test_a_core_has_one_owner_and_a_killed_one_gives_it_back(tmp_path):
    locks = {"LQCD_STANDIN_NRT_LOCKS": str(tmp_path)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(SUPPORT), __file__, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout.readline() == "running\n"
        with nki_machine.machine(environment=locks):
            with pytest.raises(BackendUnavailable, match=r"nrt_init .*1005.*neuron-ls.*NEURON_RT_VISIBLE_CORES"):
                libnrt.runtime()
        owner.send_signal(signal.SIGKILL)  # in the middle of a launch
        owner.wait(30)
        deadline = time.monotonic() + 30
        while True:
            try:
                with nki_machine.machine(environment=locks):
                    libnrt.runtime()
                break
            except BackendUnavailable:
                assert time.monotonic() < deadline
    finally:
        owner.kill()
        owner.wait(30)
        owner.stdout.close()


def test_a_stand_in_says_so():
    with nki_machine.machine():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            run = libnrt.runtime()
        assert "STAND-IN" in run.label
        assert [w.category for w in seen if "no Neuron device" in str(w.message)] == [libnrt.StandInWarning]


def test_missing_and_wrong_libraries_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv(libnrt.VARIABLE, str(tmp_path / "libnrt.so.1"))
    with pytest.raises(BackendUnavailable, match=r"LQCD_NEURON_LIBRARY=.*aws-neuronx-runtime-lib"):
        libnrt.Library()
    import _ctypes

    monkeypatch.setenv(libnrt.VARIABLE, _ctypes.__file__)  # a library, but not this one
    with pytest.raises(BackendUnavailable, match="lacks nrt_add_tensor_to_tensor_set"):
        libnrt.Library()
    monkeypatch.delenv(libnrt.VARIABLE)
    with pytest.raises(BackendUnavailable, match=r"no Neuron runtime library .*LQCD_NEURON_LIBRARY"):
        libnrt.Library()
