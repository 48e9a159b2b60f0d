// SPDX-License-Identifier: Apache-2.0
#include "core/new_message.h"

#include <cstdint>
#include <string>

#include "core/testing/counted_new.h"
#include "gtest/gtest.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
#include "proto/node_def.pb.h"

// covers: steps: a message of nodes or functions that runs out of memory is freed; at most the text
//   of one long attr name is lost

namespace millrace {
namespace {

using tensorflow::AttrValue;
using tensorflow::FunctionDef;
using tensorflow::NodeDef;
using testing::ForEveryAllocation;
using testing::LiveBlocks;

// Longer than a string's own room.
const std::string& Long() {
  static const std::string* const text = new std::string(100, 'x');
  return *text;
}

// Every kind of field that a node has, in maps that grow several times.
void Fill(const std::string& key, NodeDef* node) {
  node->set_name(Long());
  node->set_op(Long());
  for (int i = 0; i < 5; ++i) node->add_input(Long());
  for (int i = 0; i < 30; ++i) {
    AttrValue& attr = (*node->mutable_attr())[key + std::to_string(i)];
    switch (i % 4) {
      case 0:
        attr.set_s(Long());
        break;
      case 1:
        for (int j = 0; j < 9; ++j) {
          (*attr.mutable_func()->mutable_attr())[key + std::to_string(j)].set_s(Long());
        }
        break;
      case 2:
        for (int j = 0; j < 5; ++j) {
          attr.mutable_list()->add_s(Long());
          attr.mutable_list()->add_i(j);
          attr.mutable_list()->add_shape()->add_dim()->set_name(Long());
        }
        break;
      default:
        attr.mutable_tensor()->set_tensor_content(Long());
        attr.mutable_tensor()->add_string_val(Long());
        break;
    }
  }
  node->mutable_experimental_debug_info()->add_original_node_names(Long());
}

// Blocks that are lost when an allocation fails while nodes and a function are made and copied.
int64_t MostLostBlocks(const std::string& key) {
  Long();
  int64_t most = 0;
  int64_t before = LiveBlocks();
  const int64_t failures = ForEveryAllocation(
      [&] {
        try {
          const auto node = NewMessage<NodeDef>();
          Fill(key, node.get());
          const auto function = NewMessage<FunctionDef>();
          *function->add_node_def() = *node;
          (*function->mutable_attr())[key] = node->attr().begin()->second;
          (*function->mutable_ret())[key] = Long();
          const auto copy = NewMessage<FunctionDef>();
          *copy = *function;
          EXPECT_EQ(copy->node_def(0).attr().size(), 30u);
        } catch (const std::bad_alloc&) {
        }
      },
      [&](int64_t, bool failed) {
        if (!failed) {
          EXPECT_EQ(LiveBlocks(), before);
        }
        most = std::max(most, LiveBlocks() - before);
        before = LiveBlocks();
      });
  EXPECT_GT(failures, 100);
  return most;
}

TEST(NewMessage, AnAllocationThatFailsLeavesNothingBehind) { EXPECT_EQ(MostLostBlocks("a"), 0); }

TEST(NewMessage, OfALongKeyTheTextIsLost) {
  EXPECT_LE(MostLostBlocks("an_attr_with_a_long_name"), 1);
}

TEST(NewMessage, ASmallNodeIsOneBlock) {
  const int64_t before = testing::Allocations();
  const auto node = NewMessage<NodeDef>();
  node->set_op("Const");
  (*node->mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
  auto* const value = (*node->mutable_attr())["value"].mutable_tensor();
  value->mutable_tensor_shape()->add_dim()->set_size(1);
  value->add_float_val(1);
  EXPECT_EQ(testing::Allocations() - before, 1);
}

TEST(NewMessage, LivesAsLongAsWhoHoldsIt) {
  auto first = NewMessage<NodeDef>();
  first->set_name(Long());
  const std::shared_ptr<const NodeDef> second = first;
  first = nullptr;
  EXPECT_EQ(second->name(), Long());
}

}  // namespace
}  // namespace millrace
