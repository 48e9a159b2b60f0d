// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/strided_copy.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/loops/bytes.h"

namespace millrace::math {
namespace {

// The definition, one index at a time.
std::vector<int32_t> Expected(const std::vector<int64_t>& dims, const std::vector<int64_t>& in_s,
                              const std::vector<int64_t>& out_s, const int32_t* in,
                              std::vector<int32_t> out, int64_t out_origin) {
  int64_t total = 1;
  for (int64_t d : dims) total *= d;
  for (int64_t flat = 0; flat < total; ++flat) {
    int64_t rest = flat, from = 0, to = out_origin;
    for (size_t d = dims.size(); d-- > 0;) {
      const int64_t i = rest % dims[d];
      rest /= dims[d];
      from += i * in_s[d];
      to += i * out_s[d];
    }
    out[static_cast<size_t>(to)] = in[from];
  }
  return out;
}

TEST(StridedCopy, AgreesWithItsDefinitionForRandomPermutationsReversalsAndParts) {
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    const int rank = static_cast<int>(random() % 5);
    std::vector<int64_t> storage, dims;
    for (int d = 0; d < rank; ++d) storage.push_back(1 + static_cast<int64_t>(random() % 21));
    const auto strides = DenseStrides(storage);
    // A part with steps (of either direction) of the storage, its dimensions permuted.
    std::vector<int> order(static_cast<size_t>(rank));
    for (int d = 0; d < rank; ++d) order[static_cast<size_t>(d)] = d;
    std::shuffle(order.begin(), order.end(), random);
    std::vector<int64_t> in_strides;
    int64_t origin = 0;
    for (int o : order) {
      const size_t i = static_cast<size_t>(o);
      const int64_t step = 1 + static_cast<int64_t>(random() % 2);
      const int64_t count = 1 + (storage[i] - 1) / step;
      if (random() % 4 == 0) {
        origin += (count - 1) * step * strides[i];
        in_strides.push_back(-step * strides[i]);
      } else {
        in_strides.push_back(random() % 5 == 0 ? 0 : step * strides[i]);
      }
      dims.push_back(count);
    }
    int64_t n = 1;
    for (int64_t d : storage) n *= d;
    std::vector<int32_t> in(static_cast<size_t>(n));
    for (auto& v : in) v = static_cast<int32_t>(random());
    // The output has a margin of one in each dimension.
    std::vector<int64_t> out_dims;
    for (int64_t d : dims) out_dims.push_back(d + 1);
    const auto out_strides_dense = DenseStrides(out_dims);
    const std::vector<int64_t> out_strides(out_strides_dense.begin(), out_strides_dense.end());
    int64_t out_n = 1;
    for (int64_t d : out_dims) out_n *= d;
    std::vector<int32_t> out(static_cast<size_t>(out_n), -1);
    const auto want = Expected(dims, in_strides, out_strides, in.data() + origin, out, 0);
    const StridedBox box = MakeStridedBox(dims, in_strides, out_strides);
    // In two parts, as two threads would.
    const int64_t rows = box.num_rows();
    const int64_t middle = rows == 0 ? 0 : static_cast<int64_t>(random()) % rows;
    const auto* from = reinterpret_cast<const Bytes<4>*>(in.data() + origin);
    auto* to = reinterpret_cast<Bytes<4>*>(out.data());
    CopyStrided(box, from, to, middle, rows);
    CopyStrided(box, from, to, 0, middle);
    ASSERT_EQ(out, want) << "round " << round;
  }
}

TEST(StridedCopy, DenseCopyBecomesOneRow) {
  const StridedBox box = MakeStridedBox({4, 1, 3, 5}, {15, 15, 5, 1}, {15, 7, 5, 1});
  EXPECT_EQ(box.dims, StridedBox::Dims({60}));
  EXPECT_EQ(box.num_rows(), 1);
}

TEST(StridedCopy, TransposedMatrixUsesTiles) {
  EXPECT_TRUE(MakeStridedBox({40, 30}, {1, 40}, {30, 1}).transposes);
  EXPECT_FALSE(MakeStridedBox({40, 30}, {30, 1}, {30, 1}).transposes);
}

TEST(StridedCopy, BoxWithoutElementsTouchesNothing) {
  const StridedBox box = MakeStridedBox({3, 0, 2}, {0, 2, 1}, {0, 2, 1});
  EXPECT_EQ(box.num_rows(), 0);
  CopyStrided<Bytes<4>>(box, nullptr, nullptr, 0, box.num_rows());
}

TEST(StridedCopy, CopiesStrings) {
  const std::vector<std::string> in = {"a", "b", "c", "d"};
  std::vector<std::string> out(4);
  const StridedBox box = MakeStridedBox({2, 2}, {1, 2}, {2, 1});
  CopyStrided(box, in.data(), out.data(), 0, box.num_rows());
  EXPECT_EQ(out, (std::vector<std::string>{"a", "c", "b", "d"}));
}

}  // namespace
}  // namespace millrace::math
