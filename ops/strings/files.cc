// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/files.h"

#include <string>
#include <utility>

#include "core/cancellation.h"
#include "core/exceptions.h"
#include "core/file_system.h"
#include "core/io_pool.h"
#include "formats/graph_files.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// Files are opened on the I/O pool, once `Rule` accepts the inputs. `kWork` gets a path, input 0.
template <typename Rule, Status (*kWork)(KernelContext* ctx, const std::string& path)>
class FileKernel final : public AsyncKernel {
 public:
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    StepRule step(ctx);
    if (const Status accepted = ApplyRule(Rule(), &step); !accepted.ok()) return done(accepted);
    ctx->io_pool()->Schedule([ctx, done = std::move(done)]() mutable {
      const std::string& path = ctx->input(0).raw_scalar<std::string>();
      done(NoExceptions(path, [&] { return Work(ctx, path); }));
    });
  }

 private:
  static Status Work(KernelContext* ctx, const std::string& path) {
    // The step may have ended while this waited for a thread.
    if (ctx->cancellation() != nullptr && ctx->cancellation()->IsCancelled()) {
      return absl::CancelledError("the step was cancelled");
    }
    return kWork(ctx, path);
  }
};

// --- ReadFile ------------------------------------------------------------------------------------

struct ReadRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "filename").status());
    return PartialShape::Scalar();
  }
};

Status Read(KernelContext* ctx, const std::string& path) {
  MR_ASSIGN_OR_RETURN(std::string contents, ReadFileToString(GraphFiles(), path));
  ctx->set_output(0, Tensor::Scalar<std::string>(std::move(contents)));
  return absl::OkStatus();
}

// Not stateful, as in TensorFlow: only the trait keeps passes from reading ahead of the step.
const OpRegistration kReadFile = OpSpec("ReadFile", "filename: string -> contents: string")
                                     .UsesFiles()
                                     .Rule<ReadRule>()
                                     .NotDifferentiable()
                                     .With(KernelFor<FileKernel<ReadRule, Read>>());

// --- WriteFile -----------------------------------------------------------------------------------

struct WriteRule {
  Status operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "filename").status());
    return c->InputWithRank(1, 0, "contents").status();
  }
};

Status Write(KernelContext* ctx, const std::string& path) {
  FileSystem* const files = GraphFiles();
  if (const std::string directory = Dirname(path); !directory.empty()) {
    MR_RETURN_IF_ERROR(files->RecursivelyCreateDirectory(directory));
  }
  return WriteFileAtomically(files, path, ctx->input(1).raw_scalar<std::string>());
}

const OpRegistration kWriteFile = OpSpec("WriteFile", "filename: string, contents: string")
                                      .Stateful()
                                      .UsesFiles()
                                      .Rule<WriteRule>()
                                      .NotDifferentiable()
                                      .With(KernelFor<FileKernel<WriteRule, Write>>());

}  // namespace
}  // namespace millrace
