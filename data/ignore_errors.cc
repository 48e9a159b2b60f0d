// SPDX-License-Identifier: Apache-2.0
//
// What becomes of errors, and of data without any element: IgnoreErrors, RequireElements.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "data/dataset.h"
#include "data/dataset_node.h"
#include "data/dropped_rows.h"
#include "data/lost_file.h"

namespace millrace::data {
namespace {

using Inputs = std::vector<Dataset>;

constexpr char kIgnoreErrors[] = "IgnoreErrors";

// --- IgnoreErrors

class IgnoreErrorsNode : public DatasetNode {
 public:
  IgnoreErrorsNode(const Inputs& inputs, IgnoreErrorsOptions options)
      : DatasetNode(inputs[0].spec(), CardinalityOf(inputs[0]), inputs),
        options_(std::move(options)) {}
  // Without the options: a state may go on with other limits.
  std::string Text() const override { return absl::StrCat(kIgnoreErrors, "()"); }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  const IgnoreErrorsOptions& options() const { return options_; }

 private:
  static int64_t CardinalityOf(const Dataset& input) {
    return input.cardinality() <= 0 ? input.cardinality() : kUnknownCardinality;
  }

  const IgnoreErrorsOptions options_;
};

// What the log has of one IgnoreErrors, whichever pass it was.
struct Log {
  int64_t so_far = 0;  // the largest number of errors, while reading
  int64_t files = 0;   // of files
  int64_t total = 0;   // the same at the end of a pass
};

class IgnoreErrorsIterator : public ElementIterator {
 public:
  IgnoreErrorsIterator(const IgnoreErrorsNode* node, const IteratorContext& context,
                       std::unique_ptr<ElementIterator> input)
      : node_(node),
        input_(std::move(input)),
        context_(context),
        rows_({.most = node->options().max_errors,
               .most_share = node->options().max_share,
               .share_from = node->options().share_from},
              {.where = kIgnoreErrors,
               .unit = "elements",
               .hint = "IgnoreErrorsOptions::max_share (1: all) and max_errors (kForever) allow "
                       "more"}) {}
  // Of a pass that nobody reads to its end.
  ~IgnoreErrorsIterator() override { TellTotal(); }

  StatusOr<bool> Next(Element* element) override {
    return NextGood([&] { return input_->Next(element); }, [] { return int64_t{1}; });
  }
  bool ServesBlocks() const override { return input_->ServesBlocks(); }
  StatusOr<bool> NextBlock(int64_t max_rows, Block* block) override {
    return NextGood([&] { return input_->NextBlock(max_rows, block); },
                    [&] { return block->rows; });
  }
  bool NextIsReady() const override { return ended_ || input_->NextIsReady(); }
  bool NeverWaits() const override { return input_->NeverWaits(); }

  Status Save(StateWriter* state) override {
    state->PutBool(ended_);
    state->PutInt(rows_.kept());
    state->PutInt(rows_.dropped());
    state->PutBytes(rows_.first());
    state->PutInt(files_);
    return input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    constexpr int64_t kMost = int64_t{1} << 61;
    MR_ASSIGN_OR_RETURN(ended_, state->GetBool());
    MR_ASSIGN_OR_RETURN(const int64_t kept, state->GetInt(0, kMost));
    MR_ASSIGN_OR_RETURN(const int64_t dropped, state->GetInt(0, kMost));
    MR_ASSIGN_OR_RETURN(const absl::string_view first, state->GetBytes());
    rows_.Restore(kept, dropped, first);
    if (state->version() >= 2) {
      MR_ASSIGN_OR_RETURN(files_, state->GetInt(0, dropped));
    }
    context_.environment->dropped.fetch_add(dropped, std::memory_order_relaxed);
    return input_->Restore(state);
  }

 private:
  template <typename Read, typename Rows>
  StatusOr<bool> NextGood(const Read& read, const Rows& rows_read) {
    while (!ended_) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      const StatusOr<bool> more = read();
      if (more.ok() && !*more) {
        TellTotal();
        return false;
      }
      if (!more.ok()) MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      const Status allowed = more.ok() ? rows_.Keep(rows_read()) : Drop(more.status());
      if (!allowed.ok()) {
        ended_ = true;
        return allowed;
      }
      if (more.ok()) return true;
    }
    return false;
  }

  Status Drop(const Status& error) {
    if (IsLostFile(error)) return DropFile(error);
    context_.environment->dropped.fetch_add(1, std::memory_order_relaxed);
    const Status allowed = rows_.Drop(error);
    const int64_t count = rows_.dropped();
    if (IsPowerOfTen(count) && Raise(&Log::so_far, count)) {
      if (count == 1) {
        LogWarning("IgnoreErrors: dropped an element: ", error.message());
      } else {
        LogWarning("IgnoreErrors: dropped ", rows_.Text(), ", so far");
      }
    }
    return Told(error, allowed);
  }

  // One of a few, of which each one is told.
  Status DropFile(const Status& error) {
    const int64_t most = node_->options().max_files;
    if (most != kForever && files_ >= most) {
      return Suffixed(error,
                      absl::StrCat("; the rest of the file is left out, and IgnoreErrors may "
                                   "leave out ",
                                   most, " files: IgnoreErrorsOptions::max_files allows more"));
    }
    ++files_;
    context_.environment->dropped.fetch_add(1, std::memory_order_relaxed);
    const Status allowed = rows_.Drop(error);
    if (Raise(&Log::files, files_)) {
      LogWarning("IgnoreErrors: dropped the rest of a file: ", error.message());
    }
    return Told(error, allowed);
  }

  // To the caller, who has words for it.
  Status Told(const Status& error, const Status& allowed) {
    const std::function<void(const Status&)>& on_error = node_->options().on_error;
    if (on_error == nullptr) return allowed;
    const Status called = NoExceptions(kIgnoreErrors, [&] {
      on_error(error);
      return absl::OkStatus();
    });
    return allowed.ok() ? called : allowed;
  }

  void TellTotal() {
    const int64_t count = rows_.dropped();
    if (count > 0 && Raise(&Log::total, count)) LogWarning("IgnoreErrors: dropped ", rows_.Text());
  }

  // Is `count` more than any pass has told?
  bool Raise(int64_t Log::*what, int64_t count) {
    IteratorEnvironment& environment = *context_.environment;
    MutexLock lock(&environment.mu);
    std::shared_ptr<void>& told = environment.shared[context_.path];
    if (told == nullptr) told = std::make_shared<Log>();
    int64_t& most = static_cast<Log*>(told.get())->*what;
    if (count <= most) return false;
    most = count;
    return true;
  }

  static bool IsPowerOfTen(int64_t n) {
    while (n % 10 == 0) n /= 10;
    return n == 1;
  }

  const IgnoreErrorsNode* const node_;
  const std::unique_ptr<ElementIterator> input_;
  const IteratorContext context_;
  DroppedRows rows_;    // of this pass
  int64_t files_ = 0;   // of them
  bool ended_ = false;  // too many were dropped
};

StatusOr<std::unique_ptr<ElementIterator>> IgnoreErrorsNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<IgnoreErrorsNode, IgnoreErrorsIterator>(this, context);
}

// --- RequireElements

class RequireElementsNode : public DatasetNode {
 public:
  explicit RequireElementsNode(const Inputs& inputs)
      : DatasetNode(inputs[0].spec(), inputs[0].cardinality(), inputs) {}
  std::string Text() const override { return "RequireElements()"; }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
};

class RequireElementsIterator : public ElementIterator {
 public:
  RequireElementsIterator(const RequireElementsNode* node, const IteratorContext& context,
                          std::unique_ptr<ElementIterator> input)
      : node_(node), context_(context), input_(std::move(input)) {}

  StatusOr<bool> Next(Element* element) override { return Checked(input_->Next(element)); }
  bool ServesBlocks() const override { return input_->ServesBlocks(); }
  StatusOr<bool> NextBlock(int64_t max_rows, Block* block) override {
    return Checked(input_->NextBlock(max_rows, block));
  }
  StatusOr<bool> NextRows(int64_t max_rows, Block* block) override {
    return Checked(input_->NextRows(max_rows, block));
  }
  bool NextIsReady() const override { return input_->NextIsReady(); }
  bool NeverWaits() const override { return input_->NeverWaits(); }
  Status Save(StateWriter* state) override {
    state->PutBool(told_);
    return input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(told_, state->GetBool());
    return input_->Restore(state);
  }

 private:
  StatusOr<bool> Checked(StatusOr<bool> more) {
    const bool is_end = more.ok() && !*more;
    if (std::exchange(told_, true) || !is_end) return more;
    const int64_t dropped = context_.environment->dropped.load(std::memory_order_relaxed);
    return InvalidArgument("the data must have at least one element, got none from ",
                           node_->inputs()[0].DebugString(),
                           dropped > 0 ? absl::StrCat("; IgnoreErrors dropped ", dropped) : "");
  }

  const RequireElementsNode* const node_;
  const IteratorContext context_;
  const std::unique_ptr<ElementIterator> input_;
  bool told_ = false;  // an element, an error, or that there is none
};

StatusOr<std::unique_ptr<ElementIterator>> RequireElementsNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<RequireElementsNode, RequireElementsIterator>(this, context);
}

}  // namespace

Dataset Dataset::IgnoreErrors(IgnoreErrorsOptions options) const {
  if (!status_.ok()) return *this;
  if (options.max_errors < kForever) {
    return Error(InvalidArgument("Dataset.IgnoreErrors: max_errors must be >= 0, or kForever, got ",
                                 options.max_errors));
  }
  if (options.max_files < kForever) {
    return Error(InvalidArgument("Dataset.IgnoreErrors: max_files must be >= 0, or kForever, got ",
                                 options.max_files));
  }
  if (!(options.max_share >= 0 && options.max_share <= 1)) {
    return Error(InvalidArgument("Dataset.IgnoreErrors: max_share must be in [0, 1], got ",
                                 options.max_share));
  }
  return MakeDataset<IgnoreErrorsNode>({*this}, std::move(options));
}

Dataset Dataset::RequireElements() const { return MakeDataset<RequireElementsNode>({*this}); }

}  // namespace millrace::data
