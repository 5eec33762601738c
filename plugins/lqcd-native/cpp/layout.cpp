#include "layout.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

namespace lqcd_native {

namespace {
constexpr size_t kHuge = size_t(2) << 20;
constexpr size_t kSpareCount = 6;              // blocks that a layout keeps for the next handle: a CG needs no more
constexpr size_t kPad = 13 * 64;               // columns must not fall on the same cache sets

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
}  // namespace

Block::Block(size_t bytes) : bytes_(bytes) {
  const size_t align = bytes >= kHuge ? kHuge : 64;
  const size_t size = round_up(bytes ? bytes : 64, align);
  data_ = std::aligned_alloc(align, size);
  if (!data_) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  if (align == kHuge) madvise(data_, size, MADV_HUGEPAGE);
#endif
}

Block::~Block() { std::free(data_); }

Storage storage_of(const std::string& name) {
  const char* names[] = {"float64", "float32", "float16", "bfloat16", "fixed16"};
  for (int k = 0; k < 5; ++k)
    if (name == names[k]) return Storage(k);
  throw std::invalid_argument("no such storage: float64, float32, float16, bfloat16 or fixed16");
}

Layout::Layout(std::vector<int> extents, int parity_, Storage storage_, const KernelTable* kernels_)
    : kernels(kernels_), storage(storage_), is_double(storage_ == Storage::f64), parity(parity_) {
  const Ops* tables[] = {&kernels->f64, &kernels->f32, &kernels->f16, &kernels->b16, &kernels->q16};
  ops_ = tables[int(storage)];
  if (extents.size() != 4) throw std::invalid_argument("a lattice has four extents");
  int64_t volume = 1;
  for (int mu = 0; mu < 4; ++mu) {
    if (extents[mu] < 1) throw std::invalid_argument("an extent must be at least 1");
    if (parity >= 0 && extents[mu] % 2) throw std::invalid_argument("a parity needs even extents");
    extent[mu] = extents[mu];
    volume *= extents[mu];
    if (volume > (int64_t(1) << 31) - 1) throw std::invalid_argument("more than 2^31 - 1 sites");
  }
  if (parity < -1 || parity > 1) throw std::invalid_argument("parity must be -1, 0 or 1");
  sites = parity < 0 ? volume : volume / 2;
  lanes = ops().lanes;
  choose_split();
  fill_tables();
  group_stride_ = round_up(size_t(vsites) * site_bytes(), 64);
  if (group_stride_ % 4096 < kPad) group_stride_ += kPad;
}

void Layout::choose_split() {
  // The most sub-lattices first; among equals the smallest share of vectors at their edges. On one parity a sub-lattice
  // must have even extents in the directions that are cut, so that all lanes of a vector site are of one parity.
  double best_edges = 0;
  site_lanes = 0;
  for (int wz = 1; wz <= lanes; wz *= 2)
    for (int wy = 1; wz * wy <= lanes; wy *= 2)
      for (int wx = 1; wz * wy * wx <= lanes; wx *= 2) {
        const int w[4] = {1, wz, wy, wx};
        double edges = 0;
        bool fits = true;
        for (int mu = 1; mu < 4; ++mu) {
          if (extent[mu] % w[mu]) fits = false;
          if (parity >= 0 && w[mu] > 1 && extent[mu] / w[mu] % 2) fits = false;
          if (w[mu] > 1) edges += double(w[mu]) / extent[mu] + 1e-3 * w[mu] * w[mu] + 1e-4 * mu;  // ties: spread, long rows
        }
        const int product = wz * wy * wx;
        if (!fits || product < site_lanes || (product == site_lanes && edges >= best_edges)) continue;
        site_lanes = product, best_edges = edges;
        std::memcpy(split, w, sizeof(split));
      }
  rhs_lanes = lanes / site_lanes;
  for (int mu = 0; mu < 4; ++mu) local[mu] = extent[mu] / split[mu];
  vsites = sites / site_lanes;
  per_slice = vsites / extent[0];
}

void Layout::fill_tables() {
  site.resize(vsites * site_lanes);
  nbr.resize(vsites * 8);
  cross.resize(vsites);
  lane_map.resize(8 * lanes);
  const auto number = [&](const int* c) {  // of a vector site from local coordinates; on a parity two share a number
    const int64_t k = ((int64_t(c[0]) * local[1] + c[1]) * local[2] + c[2]) * local[3] + c[3];
    return int32_t(parity < 0 ? k : k / 2);
  };
  int c[4];
  for (c[0] = 0; c[0] < local[0]; ++c[0])
    for (c[1] = 0; c[1] < local[1]; ++c[1])
      for (c[2] = 0; c[2] < local[2]; ++c[2])
        for (c[3] = 0; c[3] < local[3]; ++c[3]) {
          if (parity >= 0 && (c[0] + c[1] + c[2] + c[3]) % 2 != parity) continue;
          const int32_t s = number(c);
          for (int l = 0; l < site_lanes; ++l) {
            const int block[4] = {0, l / (split[2] * split[3]), l / split[3] % split[2], l % split[3]};
            int g[4];
            for (int mu = 0; mu < 4; ++mu) g[mu] = block[mu] * local[mu] + c[mu];
            const int64_t row = (int64_t(g[0]) * extent[1] + g[1]) * extent[2] + g[2];
            site[int64_t(s) * site_lanes + l] = int32_t(parity < 0 ? row * extent[3] + g[3] : row * (extent[3] / 2) + g[3] / 2);
          }
          uint8_t crossing = 0;
          for (int mu = 0; mu < 4; ++mu)
            for (int back = 0; back < 2; ++back) {
              int n[4] = {c[0], c[1], c[2], c[3]};
              n[mu] += back ? -1 : 1;
              const bool over = n[mu] < 0 || n[mu] == local[mu];
              n[mu] = (n[mu] + local[mu]) % local[mu];
              nbr[int64_t(s) * 8 + 2 * mu + back] = number(n);
              if (over && split[mu] > 1) crossing |= uint8_t(1 << (2 * mu + back));
            }
          cross[s] = crossing;
        }
  for (int mu = 0; mu < 4; ++mu)
    for (int back = 0; back < 2; ++back)
      for (int l = 0; l < lanes; ++l) {
        const int sl = l / rhs_lanes, r = l % rhs_lanes;
        int block[4] = {0, sl / (split[2] * split[3]), sl / split[3] % split[2], sl % split[3]};
        block[mu] = (block[mu] + (back ? split[mu] - 1 : 1)) % split[mu];
        lane_map[(2 * mu + back) * lanes + l] = ((block[1] * split[2] + block[2]) * split[3] + block[3]) * rhs_lanes + r;
      }
}

void Layout::coordinates(int64_t s, int* c) const {
  const int width = parity < 0 ? extent[3] : extent[3] / 2;
  c[3] = int(s % width), s /= width;
  c[2] = int(s % extent[2]), s /= extent[2];
  c[1] = int(s % extent[1]);
  c[0] = int(s / extent[1]);
  if (parity >= 0) c[3] = 2 * c[3] + (c[0] + c[1] + c[2] + parity) % 2;
}

bool Layout::same(const Layout& o) const {
  return this == &o || (parity == o.parity && storage == o.storage && kernels == o.kernels &&
                        std::memcmp(extent, o.extent, sizeof(extent)) == 0);
}

bool Layout::hops_from(const Layout& o) const {
  return o.parity == (parity < 0 ? -1 : 1 - parity) && storage == o.storage && kernels == o.kernels &&
         std::memcmp(extent, o.extent, sizeof(extent)) == 0;
}

std::string Layout::describe() const {
  std::string text = std::to_string(lanes) + " lanes = ";
  if (site_lanes > 1)
    text += std::to_string(site_lanes) + " sub-lattices (" + std::to_string(split[1]) + "x" + std::to_string(split[2]) + "x" +
            std::to_string(split[3]) + " over z, y, x)";
  if (rhs_lanes > 1) text += std::string(site_lanes > 1 ? " x " : "") + std::to_string(rhs_lanes) + " right-hand sides";
  return text;
}

std::unique_ptr<Block> Layout::take_block(size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // The smallest that is large enough, and not wastefully so: in a solve columns leave the batch, and fresh pages cost more
    // than what is computed on them.
    size_t best = spare_.size();
    for (size_t k = spare_.size(); k-- > 0;)
      if (spare_[k]->bytes() >= bytes && spare_[k]->bytes() <= 4 * bytes &&
          (best == spare_.size() || spare_[k]->bytes() < spare_[best]->bytes()))
        best = k;
    if (best < spare_.size()) {
      auto found = std::move(spare_[best]);
      spare_.erase(spare_.begin() + best);
      return found;
    }
  }
  return std::make_unique<Block>(bytes);
}

void Layout::give_block(std::unique_ptr<Block> block) {
  std::unique_ptr<Block> oldest;  // freed outside the lock
  std::lock_guard<std::mutex> lock(mutex_);
  spare_.push_back(std::move(block));
  if (spare_.size() > kSpareCount) {
    oldest = std::move(spare_.front());
    spare_.erase(spare_.begin());
  }
}

Field::Field(std::shared_ptr<Layout> l, int columns)
    : layout(std::move(l)), n(columns), block_(layout->take_block(layout->groups(columns) * layout->group_stride())) {}

Field::~Field() {
  if (block_) layout->give_block(std::move(block_));
}

}  // namespace lqcd_native
