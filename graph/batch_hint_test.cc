// SPDX-License-Identifier: Apache-2.0
#include "graph/batch_hint.h"

#include "core/shape.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(BatchHintTest, OneRowInPlaceOfABatchIsFound) {
  const struct {
    PartialShape wanted;
    Shape got;
    const char* hint;
  } cases[] = {
      {{-1, 3}, Shape{3}, "; it is one row: did you forget the batch dimension, as in [1,3]?"},
      {{-1}, Shape{}, "; it is one row: did you forget the batch dimension, as in [1]?"},
      {{-1, 28, -1, 1},
       Shape{28, 27, 1},
       "; it is one row: did you forget the batch dimension, as in [1,28,27,1]?"},
      {{-1, 3}, Shape{0}, ""},
      {{-1, 0}, Shape{0}, "; it is one row: did you forget the batch dimension, as in [1,0]?"},
      {{-1, 3}, Shape{4}, ""},         // a row of another size
      {{-1, 3}, Shape{2, 4}, ""},      // a batch of such rows
      {{-1, 3}, Shape{}, ""},          // less than a row
      {{-1, 3}, Shape{1, 2, 3}, ""},   // more than a batch
      {{2, 3}, Shape{3}, ""},          // a batch of a fixed size is no question of one row
      {PartialShape(), Shape{3}, ""},  // any rank
      {PartialShape::Scalar(), Shape{}, ""},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(BatchHint(c.wanted, c.got), c.hint) << c.wanted << " " << c.got;
  }
}

}  // namespace
}  // namespace millrace
