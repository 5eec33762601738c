"""The stand-in of the XLA package holds what the vendor documents of it: signatures as data, and the behaviour that code relies on."""

import inspect
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from neuron_standin import standin  # noqa: E402

# Vendor's reference of the XLA package (SDK 2.31), one line a name. Keywords that the page lists beside a signature are
# keyword-only here; annotations are left out.
DOCUMENTED = {
    "trace": "(func, example_inputs, *_, input_output_aliases={}, compiler_workdir=None, compiler_args=None, "
    "partitioner_config=None, inline_weights_to_neff=True, cpu_backend=False)",
    "analyze": "(func, example_inputs, compiler_workdir=None, *, additional_ignored_ops=set(), max_workers=4, "
    "is_hf_transformers=False, cleanup=False)",
    "PartitionerConfig": "(*, trace_kwargs=None, model_support_percentage_threshold=0.5, min_subgraph_size=-1, "
    "max_subgraph_count=-1, ops_to_partition=None, analyze_parameters=None)",
    "dynamic_batch": "(neuron_script)",
    "DataParallel": "(model, device_ids=None, dim=0, set_dynamic_batching=True)",
    "lazy_load": "(trace, enable_lazy_load=True)",
    "async_load": "(trace, enable_async_load=True)",
    "set_neuron_cores": "(trace, start_nc=-1, nc_count=-1)",
    "set_multicore": "(trace)",
    "neuron_cores_context": "(start_nc=-1, nc_count=-1)",
    "multicore_context": "()",
    "move_trace_to_device": "(trace, device_id)",
    "replace_weights": "(neuron_model, weights)",
    "BucketModelConfig": "(bucket_kernel, *_, shared_state_buffer=None, shared_state_buffer_preprocessor=None, "
    "func_kwargs=None)",
    "bucket_model_trace": "(func, example_inputs, bucket_config, compiler_workdir=None, compiler_args=None)",
}
REMOVED = ("nki_jit", "experimental")  # gone since 2.24 and 2.25


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    with standin(cache=tmp_path_factory.mktemp("cache")):
        import torch_neuronx

        yield torch_neuronx


class Twice(torch.nn.Module):
    def forward(self, x):
        return 2 * x


def test_every_documented_name_has_the_documented_signature(package):
    for name, signature in DOCUMENTED.items():
        assert str(inspect.signature(getattr(package, name))) == signature, name
    assert not any(hasattr(package, name) for name in REMOVED)


def test_a_trace_is_frozen_and_dynamic_batching_frees_dimension_0(package, tmp_path):
    traced = package.trace(Twice(), torch.zeros(2, 3))
    x = torch.arange(15.0).reshape(5, 3)
    with pytest.raises(Exception, match="another shape"):
        traced(x)
    assert package.dynamic_batch(traced) is traced
    assert torch.equal(traced(x), 2 * x) and torch.equal(traced(x[:1]), 2 * x[:1])
    with pytest.raises(Exception, match="another shape"):
        traced(torch.zeros(2, 4))
    torch.jit.save(traced, str(tmp_path / "t.pt"))
    assert torch.equal(torch.jit.load(str(tmp_path / "t.pt"))(x), 2 * x)  # it stays with the file
    pair = package.trace(lambda x, y: x + y.sum(), (torch.zeros(2, 3), torch.zeros(3)))
    with pytest.raises(ValueError, match="share dimension 0"):
        package.dynamic_batch(pair)
    with pytest.raises(TypeError, match="what trace returned"):
        package.dynamic_batch(Twice())


def test_data_parallel_splits_by_cores_and_pads_only_with_dynamic_batching(package):
    x = torch.arange(15.0).reshape(5, 3)
    parallel = package.DataParallel(package.trace(Twice(), torch.zeros(2, 3)))
    assert parallel.num_workers == 4 and torch.equal(parallel(x), 2 * x)  # pieces of 2, 2 and 1
    parallel.disable_dynamic_batching()
    assert torch.equal(parallel(x[:4]), 2 * x[:4])  # 4 / 2 cores is what was traced
    for rows in (5, 2):
        with pytest.raises(Exception, match="another shape"):
            parallel(x[:rows])
    across = package.DataParallel(package.trace(Twice(), torch.zeros(3, 2)), device_ids=[0, "nc:1"], dim=1)
    assert not across.dynamic and torch.equal(across(torch.ones(3, 4)), torch.full((3, 4), 2.0))
    with pytest.raises(Exception, match="another shape"):
        across(torch.ones(3, 6))
    for ids in (["nc:2"], [-1], []):
        with pytest.raises(ValueError, match="NeuronCores 0 to 1"):
            package.DataParallel(across.model, device_ids=ids)


def test_cores_are_checked_and_loading_options_stay_with_the_file(package, tmp_path):
    traced = package.trace(Twice(), torch.zeros(2))
    package.set_neuron_cores(traced, start_nc=1)
    assert (traced.start_nc, traced.nc_count) == (1, 1)
    package.set_multicore(traced)
    assert (traced.start_nc, traced.nc_count) == (0, 2)
    for start, count in ((2, 1), (1, 2), (0, 0), (-2, 1)):
        with pytest.raises(ValueError, match="there are 2 NeuronCores"):
            package.set_neuron_cores(traced, start, count)
        with pytest.raises(ValueError, match="there are 2 NeuronCores"), package.neuron_cores_context(start, count):
            pass
    with package.multicore_context():
        assert package._PLACED[-1] == (0, 2)
    package.set_neuron_cores(Twice())  # nothing to place: documented to do nothing
    package.lazy_load(traced)
    package.async_load(traced)
    torch.jit.save(traced, str(tmp_path / "t.pt"))
    loaded = torch.jit.load(str(tmp_path / "t.pt"))
    assert loaded.lazy and loaded.asynchronous


def test_a_build_machine_must_name_its_target(package):
    with pytest.raises(ValueError, match="needs --target"):
        package.trace(Twice(), torch.zeros(2), cpu_backend=True)
    with pytest.raises(RuntimeError, match="not one of"):
        package.trace(Twice(), torch.zeros(2), cpu_backend=True, compiler_args="--target trn9")
    package.trace(Twice(), torch.zeros(2), cpu_backend=True, compiler_args="--target trn1")
    assert package.TRACED[-1]["flags"] == ["--target", "trn1"]


def test_analyze_names_what_the_device_lacks(package):
    assert package.analyze(Twice(), torch.zeros(2))["support_percentage"] == "100.00%"
    told = package.analyze(lambda x: torch.view_as_real(torch.fft.fft(x)), torch.zeros(4))
    assert [bad["kind"] for bad in told["unsupported_operators"]] == ["aten::fft_fft"]


def test_a_bucket_is_picked_by_the_kernel(package):
    def kernel():
        return lambda inputs: (inputs, torch.tensor(0 if inputs[0].shape[0] == 2 else 1))

    config = package.BucketModelConfig(kernel)
    call = package.bucket_model_trace(lambda: (Twice(), {}), [torch.zeros(2), torch.zeros(4)], config)
    assert torch.equal(call(torch.ones(4)), torch.full((4,), 2.0))
    with pytest.raises(Exception, match="another shape"):
        call(torch.ones(3))
    config = package.BucketModelConfig(kernel, func_kwargs=[{}])
    with pytest.raises(ValueError, match="2 buckets"):
        package.bucket_model_trace(lambda: (Twice(), {}), [torch.zeros(2), torch.zeros(4)], config)
