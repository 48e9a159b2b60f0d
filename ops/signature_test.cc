// SPDX-License-Identifier: Apache-2.0
//
// Every registered op has the signature that TensorFlow 1.15 gives it.
//
// The lists of TensorFlow's ops are shared data, not part of the repository: that of 1.15, and
// another of op kinds that files have and 1.15 lacks (later ones, contrib's). Ops whose name begins
// with '_' are this project's own and never leave a process; those that may leave one, and that
// TensorFlow does not have, are listed here by name. The list has two data formats of
// FusedBatchNormV3 and its gradient that stock TensorFlow 1.15 lacks; they are left out.

#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "core/testing/shared_data.h"
#include "google/protobuf/text_format.h"
#include "graph/op_registry.h"
#include "gtest/gtest.h"
#include "proto/op_def.pb.h"

// covers: values: every op's signature is TensorFlow 1.15's; every builder makes the node it says

namespace millrace {
namespace {

// What is not part of a signature.
void DropProse(tensorflow::OpDef* op) {
  op->clear_summary();
  op->clear_description();
  for (auto& arg : *op->mutable_input_arg()) arg.clear_description();
  for (auto& arg : *op->mutable_output_arg()) arg.clear_description();
  for (auto& attr : *op->mutable_attr()) attr.clear_description();
}

void DropVendorAdditions(tensorflow::OpDef* op) {
  if (op->name() != "FusedBatchNormV3" && op->name() != "FusedBatchNormGradV3") return;
  for (auto& attr : *op->mutable_attr()) {
    if (attr.name() != "data_format") continue;
    auto* formats = attr.mutable_allowed_values()->mutable_list();
    const tensorflow::AttrValue::ListValue all = *formats;
    formats->clear_s();
    for (const std::string& format : all.s()) {
      if (format == "NHWC" || format == "NCHW") formats->add_s(format);
    }
  }
}

// TensorFlow 2 has these in half and bfloat16, 1.15 has not.
void DropLaterTypes(tensorflow::OpDef* op) {
  static const std::set<std::string>* ops = new std::set<std::string>{
      "SparseSegmentMean",  "SparseSegmentMeanWithNumSegments",  "SparseSegmentMeanGrad",
      "SparseSegmentSqrtN", "SparseSegmentSqrtNWithNumSegments", "SparseSegmentSqrtNGrad"};
  if (ops->count(op->name()) == 0) return;
  for (auto& attr : *op->mutable_attr()) {
    if (attr.name() != "T") continue;
    auto* types = attr.mutable_allowed_values()->mutable_list();
    const tensorflow::AttrValue::ListValue all = *types;
    types->clear_type();
    for (const int type : all.type()) {
      if (type == tensorflow::DT_HALF || type == tensorflow::DT_BFLOAT16) continue;
      types->add_type(static_cast<tensorflow::DataType>(type));
    }
  }
}

// Ops that TensorFlow does not have. Who adds one here says that models with it are for programs of
// this project alone.
const std::set<std::string>& OwnOps() {
  static const std::set<std::string>* ops = new std::set<std::string>{"SyncReplicasAccumulator",
                                                                      "SyncReplicasApply",
                                                                      "SyncReplicasApplyRows",
                                                                      "SyncReplicasCounts",
                                                                      "SyncReplicasDone",
                                                                      "SyncReplicasGive",
                                                                      "SyncReplicasJoin",
                                                                      "SyncReplicasLeave",
                                                                      "SyncReplicasRound",
                                                                      "SyncReplicasRounds",
                                                                      "SyncReplicasTake",
                                                                      "SyncReplicasTakeRows",
                                                                      "WorkQueue",
                                                                      "WorkQueueDone",
                                                                      "WorkQueueFill",
                                                                      "WorkQueueLeave",
                                                                      "WorkQueueLedger",
                                                                      "WorkQueueRestore",
                                                                      "WorkQueueSave",
                                                                      "WorkQueueTake"};
  return *ops;
}

using Definitions = std::map<std::string, tensorflow::OpDef>;

void ReadDefinitions(const std::string& path, Definitions* definitions) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  tensorflow::OpList list;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text.str(), &list)) << path;
  for (tensorflow::OpDef op : list.op()) {
    DropProse(&op);
    DropVendorAdditions(&op);
    (*definitions)[op.name()] = op;
  }
}

TEST(Signatures, EqualTensorFlows) {
  const std::string path = SharedDataPath("ops/ops.pbtxt");
  const std::string later_path = SharedDataPath("ops/later_ops.pbtxt");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no ops/ops.pbtxt";
  if (later_path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no ops/later_ops.pbtxt";
  Definitions theirs, later;
  ReadDefinitions(path, &theirs);
  ReadDefinitions(later_path, &later);
  ASSERT_GT(theirs.size(), 300u);

  ASSERT_TRUE(OpRegistrationStatus().ok()) << OpRegistrationStatus();
  int compared = 0;
  std::set<std::string> own;
  for (const OpEntry* entry : AllOps()) {
    if (entry->def.name()[0] == '_') continue;
    auto it = theirs.find(entry->def.name());
    const bool is_later = it == theirs.end();
    if (is_later) it = later.find(entry->def.name());
    if (it == later.end()) {
      own.insert(entry->def.name());
      continue;
    }
    tensorflow::OpDef ours = entry->def;
    DropProse(&ours);
    DropLaterTypes(&ours);
    std::string our_text, their_text;
    google::protobuf::TextFormat::PrintToString(ours, &our_text);
    google::protobuf::TextFormat::PrintToString(it->second, &their_text);
    EXPECT_EQ(our_text, their_text) << "signature of " << entry->def.name();
    if (!is_later) ++compared;
  }
  EXPECT_GT(compared, 100);
  std::printf("%d of TensorFlow's %zu op kinds\n", compared,
              theirs.size());  // for the README's table
  EXPECT_EQ(own, OwnOps()) << "ops that TensorFlow 1.15 does not have, and the list of our own";
  RecordProperty("compared", compared);
}

// Every registered op can infer shapes.
TEST(Signatures, EveryOpHasAShapeFunction) {
  for (const OpEntry* entry : AllOps()) {
    EXPECT_TRUE(static_cast<bool>(entry->shape_fn)) << entry->def.name();
  }
}

// Who asks for the gradient of one of these is told that there is none: it would not be zero.
const std::set<std::string>& OpsWithoutGradientFunction() {
  static const std::set<std::string>* ops = new std::set<std::string>{"Qr",
                                                                      "SparseAddGrad",
                                                                      "SparseReduceMaxSparse",
                                                                      "SparseReduceSumSparse",
                                                                      "SparseSliceGrad",
                                                                      "SparseSparseMaximum",
                                                                      "SparseSparseMinimum"};
  return *ops;
}

TEST(Signatures, EveryOpSaysWhetherItIsDifferentiable) {
  for (const OpEntry* entry : AllOps()) {
    const std::string& op = entry->def.name();
    if (op[0] == '_' || OpsWithoutGradientFunction().count(op) != 0) continue;
    EXPECT_NE(static_cast<int>(entry->differentiability),
              static_cast<int>(OpEntry::Differentiability::kUnknown))
        << op << " has neither Gradient() nor NotDifferentiable()";
  }
}

}  // namespace
}  // namespace millrace
