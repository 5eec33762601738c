// The correctly rounded sum of doubles (Shewchuk), so that the number of partial sums does not change the bits.
#pragma once

#include <cmath>
#include <vector>

namespace lqcd_native {

inline double exact_sum(const double* values, size_t count, size_t stride) {
  std::vector<double> partials;
  for (size_t k = 0; k < count; ++k) {
    double x = values[k * stride];
    if (!std::isfinite(x)) {  // NaN and infinity pass through as in a plain sum
      double sum = 0;
      for (size_t j = 0; j < count; ++j) sum += values[j * stride];
      return sum;
    }
    size_t kept = 0;
    for (double y : partials) {
      if (std::fabs(x) < std::fabs(y)) std::swap(x, y);
      const double high = x + y, low = y - (high - x);
      if (low != 0) partials[kept++] = low;
      x = high;
    }
    partials.resize(kept);
    partials.push_back(x);
  }
  if (partials.empty()) return 0;
  size_t n = partials.size();
  double high = partials[--n], low = 0;
  while (n > 0) {
    const double x = high, y = partials[--n];
    high = x + y;
    low = y - (high - x);
    if (low != 0) break;
  }
  // Round half to even needs a look at what is left (as in math.fsum).
  if (n > 0 && ((low < 0 && partials[n - 1] < 0) || (low > 0 && partials[n - 1] > 0))) {
    const double y = low * 2, x = high + y;
    if (y == x - high) high = x;
  }
  return high;
}

}  // namespace lqcd_native
