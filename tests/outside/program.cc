// SPDX-License-Identifier: Apache-2.0
// A program outside of Millrace's tree: fits t = 2x - 1, saves it, exports it, loads it, asks it.
#include <millrace/millrace.h>

#include <cmath>
#include <cstdio>
#include <string>

using namespace millrace;

Status TrainAndPredict(const std::string& dir) {
  Scope root;
  Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1});
  Output t = Placeholder(root.WithName("t"), DT_FLOAT, {-1});
  Variable w = MakeVariable(root.WithName("w"), Const(root, 0.0f));
  Variable b = MakeVariable(root.WithName("b"), Const(root, 0.0f));
  Output y = Add(root.WithName("y"), Mul(root, w.value, x), b.value);
  Output loss = ReduceMean(root, Square(root, Sub(root, y, t)));
  Operation train = GradientDescentOptimizer({.learning_rate = 0.3}).Minimize(root, loss);
  Operation init = GlobalVariablesInitializer(root);

  MR_ASSIGN_OR_RETURN(auto saver, Saver::Make(root));
  MR_ASSIGN_OR_RETURN(auto session, NewSession({.config = {.intra_op_parallelism_threads = 1}}));
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
  const Tensor xs = Tensor::Of<float>({-1, 0, 1, 2}), ts = Tensor::Of<float>({-3, -1, 1, 3});
  for (int step = 0; step < 200; ++step) {
    MR_RETURN_IF_ERROR(session->Run({{x, xs}, {t, ts}}, {loss}, {train}).status());
  }
  MR_RETURN_IF_ERROR(saver->Save(session.get(), dir + "/model.ckpt", 200).status());

  MR_ASSIGN_OR_RETURN(auto signature, PredictSignatureDef(root, {{"x", x}}, {{"y", y}}));
  MR_ASSIGN_OR_RETURN(auto builder, SavedModelBuilder::Open(dir + "/export"));
  MR_RETURN_IF_ERROR(builder->AddMetaGraphAndVariables(
      session.get(), root, saver.get(), {.signatures = {{kDefaultServingSignature, signature}}}));
  MR_RETURN_IF_ERROR(builder->Save());

  MR_ASSIGN_OR_RETURN(auto model, LoadSavedModel({}, dir + "/export", {kSavedModelTagServe}));
  MR_ASSIGN_OR_RETURN(signature, model.Signature(kDefaultServingSignature));
  MR_ASSIGN_OR_RETURN(
      auto out, model.session->Run({{signature.inputs().at("x").name(), Tensor::Of<float>({3})}},
                                   {signature.outputs().at("y").name()}));
  const float predicted = out[0].flat<float>()[0];
  if (std::fabs(predicted - 5) > 1e-3) return Internal("y(3) must be 5, got ", predicted);
  std::printf("millrace %s: y(3) = %.3f\n", kVersion, static_cast<double>(predicted));
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  const Status status = TrainAndPredict(argc > 1 ? argv[1] : ".");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
