// SPDX-License-Identifier: Apache-2.0
//
// Cache in a file. The file is a TFRecord file of our own: a head that tells the spec, one record
// per element, and a tail with their number, so that nothing passes for whole that is not. It is
// written next to its place and renamed, synced, when the input has ended: readers see a whole file
// or none, and two that write at once each write theirs; the last one stays.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/record.h"
#include "data/dataset.h"
#include "data/dataset_node.h"

namespace millrace::data {
namespace {

constexpr absl::string_view kHead = "millrace dataset cache 1 ";
constexpr absl::string_view kTail = "end";

class FileCacheNode : public DatasetNode {
 public:
  FileCacheNode(const std::vector<Dataset>& inputs, std::string path)
      : DatasetNode(inputs[0].spec(), inputs[0].cardinality(), inputs), path_(std::move(path)) {}
  std::string Text() const override { return absl::StrCat("Cache('", path_, "')"); }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  const std::string& path() const { return path_; }
  std::string Head() const { return absl::StrCat(kHead, SpecText(spec())); }

 private:
  const std::string path_;
};

// Reading, when the file is there at the first Next; otherwise writing, until an error of the
// input or a pass that is not the whole: then the rest is passed on and nothing is kept.
class FileCacheIterator : public ElementIterator {
 public:
  FileCacheIterator(const FileCacheNode* node, const IteratorContext& context)
      : node_(node), context_(context), fs_(context.environment->options.file_system) {}
  ~FileCacheIterator() override { GiveUpWriting(); }

  StatusOr<bool> Next(Element* element) override {
    if (!begun_) MR_RETURN_IF_ERROR(Begin());
    if (ended_) return false;
    StatusOr<bool> more = reader_ != nullptr ? Read(element) : PassOn(element);
    if (more.ok() && *more) ++count_;
    // A file that is broken once is broken for good.
    ended_ = more.ok() ? !*more : reader_ != nullptr;
    return more;
  }

  // The number of elements given: the file is read, or written, again up to there.
  Status Save(StateWriter* state) override {
    state->PutInt(count_);
    state->PutBool(ended_);
    return absl::OkStatus();
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(const int64_t count, state->GetInt(0, INT64_MAX));
    MR_ASSIGN_OR_RETURN(ended_, state->GetBool());
    if (ended_) {
      begun_ = true;
      return absl::OkStatus();
    }
    Element element;
    while (count_ < count) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      MR_ASSIGN_OR_RETURN(const bool more, Next(&element));
      if (!more) {
        return absl::DataLossError(absl::StrCat("Iterator state: the input of Cache must give ",
                                                count, " elements again, got ", count_));
      }
    }
    return absl::OkStatus();
  }

 private:
  Status Begin() {
    begun_ = true;
    if (fs_->FileExists(node_->path())) {
      StatusOr<std::unique_ptr<RecordReader>> reader = RecordReader::Open(fs_, node_->path());
      if (!reader.ok()) {
        ended_ = true;
        return reader.status();
      }
      reader_ = *std::move(reader);
      const StatusOr<absl::string_view> head = reader_->Next();
      ended_ = true;
      if (!head.ok()) return Broken(head.status());
      if (*head != node_->Head()) {
        return FailedPrecondition("Dataset.Cache '", node_->path(), "': the file must hold '",
                                  node_->Head(), "', got '", head->substr(0, 200),
                                  "'; remove it or choose another path");
      }
      ended_ = false;
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(input_, MakeInput(*node_, context_));
    temporary_ = absl::StrCat(node_->path(), ".tmp", RandomHexName());
    MR_ASSIGN_OR_RETURN(writer_, RecordWriter::Open(fs_, temporary_));
    return writer_->Write(node_->Head());
  }

  Status Broken(const Status& why) const {
    return absl::DataLossError(absl::StrCat("Dataset.Cache '", node_->path(),
                                            "': the file must be whole (", why.message(),
                                            "); remove it"));
  }

  StatusOr<bool> Read(Element* element) {
    const TimedWork timed(&context_.environment->source_time, &num_timed_);
    const StatusOr<absl::string_view> record = reader_->Next();
    if (!record.ok()) return Broken(record.status());
    StateReader reader(*record);
    const StatusOr<absl::string_view> mark = reader.GetBytes();
    if (!mark.ok()) return Broken(mark.status());
    if (*mark == kTail) {
      const StatusOr<int64_t> count = reader.GetInt(0, INT64_MAX);
      if (!count.ok() || *count != count_) {
        return Broken(absl::DataLossError(absl::StrCat("its end is behind element ", count_)));
      }
      return false;
    }
    StatusOr<Element> read = reader.GetElement();
    if (!read.ok()) return Broken(read.status());
    *element = *std::move(read);
    return true;
  }

  StatusOr<bool> PassOn(Element* element) {
    if (input_ == nullptr) return false;  // it could not be made
    StatusOr<bool> more = input_->Next(element);
    if (!more.ok()) {
      GiveUpWriting();
      return more;
    }
    if (writer_ == nullptr) return more;
    StateWriter record;
    if (*more) {
      record.PutBytes("");
      MR_RETURN_IF_ERROR(Written(record.PutElement(*element)));
      MR_RETURN_IF_ERROR(Written(writer_->Write(record.Take())));
    } else {
      record.PutBytes(kTail);
      record.PutInt(count_);
      MR_RETURN_IF_ERROR(Written(Finish(record.Take())));
    }
    return more;
  }
  Status Finish(const std::string& tail) {
    MR_RETURN_IF_ERROR(writer_->Write(tail));
    MR_RETURN_IF_ERROR(writer_->Sync());
    MR_RETURN_IF_ERROR(writer_->Close());
    MR_RETURN_IF_ERROR(fs_->RenameFile(temporary_, node_->path()));
    writer_.reset();
    return fs_->SyncDirectory(Dirname(node_->path()));
  }
  // The first error of writing is told; after it elements are passed on.
  Status Written(const Status& status) {
    if (status.ok()) return status;
    GiveUpWriting();
    return Prefixed(absl::StrCat("Dataset.Cache '", node_->path(), "'"), status);
  }
  void GiveUpWriting() {
    if (writer_ == nullptr) return;
    writer_.reset();
    fs_->DeleteFile(temporary_).IgnoreError();
  }

  const FileCacheNode* const node_;
  const IteratorContext context_;
  FileSystem* const fs_;
  bool begun_ = false, ended_ = false;
  std::unique_ptr<RecordReader> reader_;    // of the file, or null
  std::unique_ptr<ElementIterator> input_;  // when there is no file
  std::unique_ptr<RecordWriter> writer_;    // of temporary_, or null
  std::string temporary_;
  int64_t count_ = 0;  // elements given
  int64_t num_timed_ = 0;
};

StatusOr<std::unique_ptr<ElementIterator>> FileCacheNode::MakeIterator(
    const IteratorContext& context) const {
  return std::make_unique<FileCacheIterator>(this, context);
}

}  // namespace

Dataset Dataset::Cache(std::string path) const {
  if (path.empty()) return Cache();
  return MakeDataset<FileCacheNode>({*this}, std::move(path));
}

}  // namespace millrace::data
