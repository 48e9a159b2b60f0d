// SPDX-License-Identifier: Apache-2.0
//
// The traits that ops state are those that passes, plans and savers count on, and they agree with
// what else the registry knows of the op.

#include <functional>
#include <set>
#include <string>

#include "graph/op_registry.h"
#include "graph/op_traits.h"
#include "gtest/gtest.h"
#include "proto/op_def.pb.h"

// covers: graphs: each op states what plans, passes and savers ask of it: how it uses
//   variables, what it hands on, that it is to be fed, that it uses files

namespace millrace {
namespace {

using Names = std::set<std::string>;

Names OpsWith(const std::function<bool(const OpTraits&)>& has) {
  Names names;
  for (const OpEntry* op : AllOps()) {
    if (has(op->traits)) names.insert(op->def.name());
  }
  return names;
}

Names OpsThatUse(VariableUse use) {
  return OpsWith([use](const OpTraits& t) {
    return t.variable_begin < t.variable_end && t.variable_use == use;
  });
}

TEST(TraitsTest, OpsStateHowTheyUseVariables) {
  EXPECT_EQ(OpsWith([](const OpTraits& t) { return t.makes_variable; }),
            (Names{"VarHandleOp", "Variable", "VariableV2"}));
  EXPECT_EQ(OpsThatUse(VariableUse::kReads), (Names{"ReadVariableOp"}));
  EXPECT_EQ(OpsThatUse(VariableUse::kReadsRows),
            (Names{"ResourceGather", "ResourceGatherNd", "_RowSums"}));
  EXPECT_EQ(OpsThatUse(VariableUse::kAsks),
            (Names{"IsVariableInitialized", "VarIsInitializedOp", "VariableShape"}));
  EXPECT_EQ(OpsThatUse(VariableUse::kSaves), (Names{"SaveV2"}));
}

TEST(TraitsTest, OpsStateWhatTheyGive) {
  EXPECT_EQ(OpsWith([](const OpTraits& t) { return t.same_each_step; }),
            (Names{"Const", "VarHandleOp"}));
  EXPECT_EQ(OpsWith([](const OpTraits& t) { return t.describes_shape; }),
            (Names{"Rank", "Shape", "ShapeN", "Size"}));
  EXPECT_EQ(OpsWith([](const OpTraits& t) { return t.hands_on == HandsOn::kValue; }),
            (Names{"PreventGradient", "StopGradient"}));
  EXPECT_EQ(OpsWith([](const OpTraits& t) { return t.hands_on == HandsOn::kValueAndGradient; }),
            (Names{"Identity", "IdentityN"}));
  EXPECT_EQ(OpsWith([](const OpTraits& t) { return t.feeding == Feeding::kRequired; }),
            (Names{"Placeholder", "PlaceholderV2"}));
  EXPECT_EQ(OpsWith([](const OpTraits& t) { return t.feeding == Feeding::kOptional; }),
            (Names{"PlaceholderWithDefault"}));
  EXPECT_EQ(OpsWith([](const OpTraits& t) { return t.is_trigger; }),
            (Names{"ControlTrigger", "_Alive"}));
}

TEST(TraitsTest, OpsStateThatTheyOpenFiles) {
  EXPECT_EQ(
      OpsWith([](const OpTraits& t) { return t.uses_files; }),
      (Names{"InitializeTableFromTextFile", "InitializeTableFromTextFileV2", "MergeV2Checkpoints",
             "ReadFile", "ReaderReadUpToV2", "ReaderReadV2", "RestoreV2", "SaveV2", "WriteFile"}));
}

TEST(TraitsTest, TraitsAgreeWithSignaturesAndGradients) {
  for (const OpEntry* op : AllOps()) {
    SCOPED_TRACE(op->def.name());
    const OpTraits& traits = op->traits;
    if (traits.hands_on != HandsOn::kNothing) {
      ASSERT_EQ(op->def.input_arg_size(), op->def.output_arg_size());
      for (int i = 0; i < op->def.input_arg_size(); ++i) {
        EXPECT_EQ(op->def.input_arg(i).type_attr(), op->def.output_arg(i).type_attr());
        EXPECT_EQ(op->def.input_arg(i).type_list_attr(), op->def.output_arg(i).type_list_attr());
      }
    }
    if (traits.hands_on == HandsOn::kValueAndGradient) {
      EXPECT_EQ(op->differentiability, OpEntry::Differentiability::kHasGradient);
    }
    if (traits.makes_variable) {
      EXPECT_EQ(op->def.input_arg_size(), 0);
      ASSERT_EQ(op->def.output_arg_size(), 1);
      EXPECT_TRUE(op->def.output_arg(0).is_ref() ||
                  op->def.output_arg(0).type() == tensorflow::DT_RESOURCE);
    }
    if (traits.variable_begin < traits.variable_end && traits.variable_use != VariableUse::kSaves) {
      ASSERT_LT(traits.variable_begin, op->def.input_arg_size());
      const auto& input = op->def.input_arg(traits.variable_begin);
      EXPECT_TRUE(input.is_ref() || input.type() == tensorflow::DT_RESOURCE);
    }
  }
}

TEST(TraitsTest, AnInputThatIsNotStatedMayBeWritten) {
  EXPECT_EQ(TraitsOf("ReadVariableOp").VariableUseOf(0), VariableUse::kReads);
  EXPECT_EQ(TraitsOf("ResourceGather").VariableUseOf(1), VariableUse::kMayWrite);
  EXPECT_EQ(TraitsOf("AssignVariableOp").VariableUseOf(0), VariableUse::kMayWrite);
  EXPECT_EQ(TraitsOf("SaveV2").VariableUseOf(2), VariableUse::kMayWrite);
  EXPECT_EQ(TraitsOf("SaveV2").VariableUseOf(1000), VariableUse::kSaves);
  EXPECT_EQ(TraitsOf("NoSuchOp").VariableUseOf(0), VariableUse::kMayWrite);
  EXPECT_EQ(TraitsOf("NoSuchOp").hands_on, HandsOn::kNothing);
}

}  // namespace
}  // namespace millrace
