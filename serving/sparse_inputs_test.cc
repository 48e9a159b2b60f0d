// SPDX-License-Identifier: Apache-2.0
//
// Sparse inputs of a served model. TensorFlow Serving feeds tensors by the one name that a
// signature gives them: it serves a sparse input as three dense ones, and no signature whose
// TensorInfo is coo_sparse.

#include <memory>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "proto/meta_graph.pb.h"
#include "proto/saved_model.pb.h"
#include "runtime/session.h"
#include "saver/export_model.h"
#include "saver/saved_model_reader.h"
#include "serving/aliased_tensor.h"
#include "serving/served_model.h"
#include "serving/step_bounds.h"

// covers: serving: a sparse input is served as values, indices and dense shape under aliases of
//   their own; a signature with a coo_sparse tensor is refused by name and leaves the others alone

namespace millrace {
namespace {

class SparseInputsTest : public ::testing::Test {
 protected:
  SparseInputsTest() : dir_(JoinPath(::testing::TempDir(), "sparse_inputs_" + RandomHexName())) {}
  ~SparseInputsTest() override { FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError(); }

  void SetUp() override {
    const Scope root;
    const Output values = Placeholder(root.WithName("values"), DT_FLOAT, {-1});
    const Output indices = Placeholder(root.WithName("indices"), DT_INT64, {-1, 2});
    const Output shape = Placeholder(root.WithName("shape"), DT_INT64, {2});
    const Output dense =
        SparseToDense(root.WithName("dense"), indices, shape, values, Const(root, 0.0f));
    ASSERT_OK(root.status());
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    const std::vector<ServingSignature> signatures = {
        {.inputs = {{"w_values", values}, {"w_indices", indices}, {"w_shape", shape}},
         .outputs = {{"dense", dense}}}};
    ASSERT_OK(ExportModel(session.get(), root, signatures, dir_));

    // As TensorFlow's builder writes a tf.sparse.placeholder.
    ASSERT_OK_AND_ASSIGN(tensorflow::SavedModel file, ReadSavedModel(FileSystem::Posix(), dir_));
    tensorflow::SignatureDef& coo = (*file.mutable_meta_graphs(0)->mutable_signature_def())["coo"];
    coo = file.meta_graphs(0).signature_def().at("serving_default");
    coo.clear_inputs();
    tensorflow::TensorInfo& info = (*coo.mutable_inputs())["w"];
    info.set_dtype(tensorflow::DT_FLOAT);
    info.mutable_coo_sparse()->set_values_tensor_name("values:0");
    info.mutable_coo_sparse()->set_indices_tensor_name("indices:0");
    info.mutable_coo_sparse()->set_dense_shape_tensor_name("shape:0");
    ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), JoinPath(dir_, "saved_model.pb"),
                                  file.SerializeAsString()));
    ASSERT_OK_AND_ASSIGN(model_, ServedModel::Load("m", 1, dir_));
  }

  const std::string dir_;
  std::unique_ptr<ServedModel> model_;
};

TEST_F(SparseInputsTest, ThreeDenseInputsAreOneSparseTensor) {
  ASSERT_OK_AND_ASSIGN(const std::vector<AliasedTensor> got,
                       model_->PredictTensors("",
                                              {{"w_values", Tensor::Of({5.f, 7.f})},
                                               {"w_indices", Tensor::Of<int64_t>({{0, 1}, {1, 0}})},
                                               {"w_shape", Tensor::Of<int64_t>({2, 2})}},
                                              {}, {}, PredictCaller::kGrpc));
  ASSERT_EQ(got.size(), 1u);
  ExpectTensorEqual(got[0].tensor, Tensor::Of<float>({{0, 5}, {7, 0}}));
}

TEST_F(SparseInputsTest, ACooSparseInputIsRefusedByName) {
  const Status refused =
      model_->PredictTensors("coo", {{"w", Tensor::Of({5.f})}}, {}, {}, PredictCaller::kGrpc)
          .status();
  EXPECT_STATUS(refused, absl::StatusCode::kUnimplemented,
                "'w' must be a dense tensor, got a sparse one; export its values, indices and "
                "dense shape under aliases of their own");
  EXPECT_STATUS(refused, absl::StatusCode::kUnimplemented, "signature 'coo'");
  // The parts under other aliases are no input of it.
  EXPECT_STATUS(
      model_->PredictTensors("coo", {{"w/values", Tensor::Of({5.f})}}, {}, {}, PredictCaller::kGrpc)
          .status(),
      absl::StatusCode::kInvalidArgument, "w");
}

}  // namespace
}  // namespace millrace
