// SPDX-License-Identifier: Apache-2.0
//
// The program of docs/input_data.md, as it stands there.

#include <cstdint>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/csv.h"
#include "data/dataset.h"
#include "data/initializable_iterator.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "runtime/session.h"

// covers: input: the page's program: rows of a CSV file by an iterator and in steps of a graph; bad
//   rows are left out and counted

namespace millrace {
namespace {

#include "docs/input_data_program.inc"

TEST(InputDataPageTest, RowsOfAFileAreReadByAnIteratorAndInAGraph) {
  const std::string file = JoinPath(::testing::TempDir(), RandomHexName() + ".csv");
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), file,
                                "age,city,clicked\n20,Rome,1\n,Oslo,0\nold,Rome,0\n41,Bern,1\n"));
  // An age that is missing is 40; "old" is none.
  int64_t bad = 0;
  ASSERT_OK_AND_ASSIGN(const float by_hand, SumOfAges(Visits(file), &bad));
  EXPECT_EQ(by_hand, 101);
  EXPECT_EQ(bad, 1);
  ASSERT_OK_AND_ASSIGN(const float in_graph, SumInSteps(Visits(file)));
  EXPECT_EQ(in_graph, 101);
}

}  // namespace
}  // namespace millrace
