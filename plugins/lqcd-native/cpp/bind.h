// Parts of the module that have a file of their own, and arrays made for Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace lqcd_native {

namespace nb = nanobind;

// A new NumPy array with these numbers.
template <class E>
nb::object array_of(const std::vector<E>& values, std::initializer_list<size_t> shape) {
  auto* data = new E[values.size() ? values.size() : 1];
  std::copy(values.begin(), values.end(), data);
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<E*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, E>(data, shape, owner));
}

void bind_solve(nb::module_& m);
void bind_gauge(nb::module_& m);

}  // namespace lqcd_native
