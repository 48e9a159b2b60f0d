// SPDX-License-Identifier: Apache-2.0
#include "data/readers.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/byte_reader.h"
#include "core/cancellation.h"
#include "core/file_system.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/record.h"
#include "formats/text_rows.h"
#include "graph/shape_inference.h"
#include "ops/kernels/queue.h"
#include "proto/node_def.pb.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"

namespace millrace {
namespace {

struct Row {
  std::string key, value;
};

// What one file gives.
class Rows {
 public:
  virtual ~Rows() = default;
  // False at the end.
  virtual StatusOr<bool> Next(Row* row) = 0;
};
// Opens what a queue's element names.
using OpenRows = std::function<StatusOr<std::unique_ptr<Rows>>(const std::string& work)>;

// --- Kinds of files ------------------------------------------------------------------------------

class LineRows : public Rows {
 public:
  LineRows(std::string path, std::unique_ptr<ByteReader> bytes)
      : path_(std::move(path)), bytes_(std::move(bytes)) {}
  StatusOr<bool> Next(Row* row) override {
    size_t searched = 0;
    while (true) {
      const absl::string_view unread = bytes_->unread();
      const size_t newline = unread.find('\n', searched);
      if (newline != absl::string_view::npos) return Take(newline, newline + 1, row);
      searched = unread.size();
      MR_ASSIGN_OR_RETURN(const bool more, bytes_->Fill(unread.size() + 1));
      if (more) continue;
      MR_RETURN_IF_ERROR(bytes_->CheckEnd());
      if (searched == 0) return false;
      return Take(searched, searched, row);  // the last line needs no newline
    }
  }

 private:
  bool Take(size_t length, size_t with_end, Row* row) {
    absl::string_view line = bytes_->unread().substr(0, length);
    if (length < with_end && !line.empty() && line.back() == '\r') line.remove_suffix(1);
    row->value.assign(line.data(), line.size());
    row->key = absl::StrCat(path_, ":", ++number_);
    bytes_->Consume(with_end);
    return true;
  }

  const std::string path_;
  const std::unique_ptr<ByteReader> bytes_;
  int64_t number_ = 0;  // of the last line
};

class RecordRows : public Rows {
 public:
  RecordRows(std::string path, std::unique_ptr<RecordReader> records)
      : path_(std::move(path)), records_(std::move(records)) {}
  StatusOr<bool> Next(Row* row) override {
    row->key = absl::StrCat(path_, ":", records_->offset());
    const StatusOr<absl::string_view> record = records_->Next();
    if (absl::IsOutOfRange(record.status())) return false;
    MR_RETURN_IF_ERROR(record.status());
    row->value.assign(record->data(), record->size());
    return true;
  }

 private:
  const std::string path_;
  const std::unique_ptr<RecordReader> records_;
};

struct FixedLayout {
  int64_t header = 0, record = 0, footer = 0, hop = 0;
};

class FixedRows : public Rows {
 public:
  FixedRows(std::string path, std::unique_ptr<ByteReader> bytes, const FixedLayout& layout)
      : path_(std::move(path)), bytes_(std::move(bytes)), layout_(layout) {}
  StatusOr<bool> Next(Row* row) override {
    MR_RETURN_IF_ERROR(Skip());
    // What follows a record is at least the footer.
    MR_ASSIGN_OR_RETURN(const bool is_there,
                        bytes_->Fill(static_cast<uint64_t>(layout_.record + layout_.footer)));
    if (!is_there) {
      MR_RETURN_IF_ERROR(bytes_->CheckEnd());
      return false;
    }
    row->value = std::string(bytes_->unread().substr(0, static_cast<size_t>(layout_.record)));
    row->key = absl::StrCat(path_, ":", number_++);
    to_skip_ = static_cast<uint64_t>(layout_.hop);
    return true;
  }

 private:
  // To where the next record begins, or to the end.
  Status Skip() {
    while (to_skip_ > 0) {
      MR_ASSIGN_OR_RETURN(const bool more, bytes_->Fill(1));
      if (!more) break;
      const size_t part =
          static_cast<size_t>(std::min<uint64_t>(to_skip_, bytes_->unread().size()));
      bytes_->Consume(part);
      to_skip_ -= part;
    }
    return absl::OkStatus();
  }

  const std::string path_;
  const std::unique_ptr<ByteReader> bytes_;
  const FixedLayout layout_;
  uint64_t to_skip_ = static_cast<uint64_t>(layout_.header);
  int64_t number_ = 0;
};

class OneRow : public Rows {
 public:
  explicit OneRow(Row row) : row_(std::move(row)) {}
  StatusOr<bool> Next(Row* row) override {
    if (given_) return false;
    given_ = true;
    *row = std::move(row_);
    return true;
  }

 private:
  Row row_;
  bool given_ = false;
};

// --- The resource --------------------------------------------------------------------------------

// A reader. Its reads stand in a line; the first one is served, on a thread of the I/O pool, or
// waits for the queue on none.
class Reader : public Resource, public std::enable_shared_from_this<Reader> {
 public:
  static constexpr const char* kTypeName = "Reader";

  struct Read {
    std::shared_ptr<Queue> queue = nullptr;  // none: a reset
    int64_t most = 1;
    IoPool* io = nullptr;
    // Outlives the read; may be null.
    CancellationManager* cancellation = nullptr;
    // Called once, on any thread. At least one row.
    absl::AnyInvocable<void(StatusOr<std::vector<Row>>)> done;

    // The reader's own.
    CancellationManager::Token token = 0;
    bool is_registered = false;
  };

  explicit Reader(OpenRows open) : open_(std::move(open)) {}

  std::string DebugString() const override {
    return absl::StrCat("Reader: ", num_rows(), " rows of ", num_files(), " files");
  }
  int64_t num_rows() const {
    MutexLock lock(&mu_);
    return num_rows_;
  }
  int64_t num_files() const {
    MutexLock lock(&mu_);
    return num_files_;
  }

  void Begin(Read wish) {
    const auto read = std::make_shared<Read>(std::move(wish));
    bool is_cancelled = false, is_first = false;
    {
      MutexLock lock(&mu_);
      is_first = line_.empty();
      if (!is_first && read->cancellation != nullptr) {
        read->is_registered = read->cancellation->Register(
            &read->token, [reader = shared_from_this(), read] { reader->Cancel(read); });
        is_cancelled = !read->is_registered;
      }
      if (!is_cancelled) line_.push_back(read);
    }
    if (is_cancelled) return read->done(Cancelled());
    if (is_first) Schedule(read);
  }

 private:
  static Status Cancelled() { return absl::CancelledError("Reader read was cancelled"); }

  void Schedule(const std::shared_ptr<Read>& read) {
    read->io->Schedule([reader = shared_from_this(), read] { reader->Serve(read); });
  }
  // Of one that waits behind others; the first is cancelled where it waits, in the queue.
  void Cancel(const std::shared_ptr<Read>& read) {
    {
      MutexLock lock(&mu_);
      const auto found = std::find(line_.begin(), line_.end(), read);
      if (found == line_.end() || found == line_.begin()) return;
      line_.erase(found);
    }
    read->done(Cancelled());
  }

  // On a thread of the pool; `read` is the first of the line, and this thread's are rows_ and
  // work_.
  void Serve(const std::shared_ptr<Read>& read) {
    if (read->queue == nullptr) {
      rows_ = nullptr;
      {
        MutexLock lock(&mu_);
        num_rows_ = num_files_ = 0;
      }
      return End(read, std::vector<Row>());
    }
    std::vector<Row> rows;
    while (rows_ != nullptr && static_cast<int64_t>(rows.size()) < read->most) {
      Row row;
      const StatusOr<bool> more = rows_->Next(&row);
      if (more.value_or(false)) {
        rows.push_back(std::move(row));
        continue;
      }
      rows_ = nullptr;
      // What came before it is given first where there is any; the file is left either way.
      if (!more.ok() && rows.empty()) return End(read, more.status());
      if (more.ok()) {
        MutexLock lock(&mu_);
        ++num_files_;
      }
      if (!rows.empty()) break;
    }
    if (!rows.empty()) {
      {
        MutexLock lock(&mu_);
        num_rows_ += static_cast<int64_t>(rows.size());
      }
      return End(read, std::move(rows));
    }
    read->queue->Begin(
        read->cancellation,
        {.wanted = 1, .done = [reader = shared_from_this(), read](auto work) {
           if (!work.ok()) return reader->End(read, work.status());
           const Tensor& name = work->front()[0];
           if (!name.shape().is_scalar()) {
             return reader->End(read, InvalidArgument("Reader: the queue must have scalars, got ",
                                                      "shape ", name.shape()));
           }
           read->io->Schedule([reader, read, file = name.template scalar<std::string>()] {
             StatusOr<std::unique_ptr<Rows>> rows = reader->open_(file);
             if (!rows.ok()) return reader->End(read, rows.status());
             reader->rows_ = *std::move(rows);
             reader->Serve(read);
           });
         }});
  }

  // The first of the line has ended; the next one is served.
  void End(const std::shared_ptr<Read>& read, StatusOr<std::vector<Row>> result) {
    std::shared_ptr<Read> next;
    {
      MutexLock lock(&mu_);
      line_.pop_front();
      if (!line_.empty()) next = line_.front();
    }
    if (read->is_registered) read->cancellation->Deregister(read->token);
    // The step may end with it, and with the step what the read holds.
    read->done(std::move(result));
    if (next != nullptr) Schedule(next);
  }

  const OpenRows open_;
  std::unique_ptr<Rows> rows_;  // of the file at hand; the first read's
  mutable Mutex mu_;
  std::list<std::shared_ptr<Read>> line_ ABSL_GUARDED_BY(mu_);
  int64_t num_rows_ ABSL_GUARDED_BY(mu_) = 0, num_files_ ABSL_GUARDED_BY(mu_) = 0;
};

// --- Ops that make readers -----------------------------------------------------------------------

constexpr char kFileLabel[] = "Reader of '";

StatusOr<std::unique_ptr<ByteReader>> OpenBytes(const std::string& path, Compression compression) {
  return ByteReader::Open(FileSystem::Default(), path, absl::StrCat(kFileLabel, path, "'"),
                          compression);
}

// What the attributes of each kind say; InvalidArgument for what cannot be.
using MakeOpen = StatusOr<OpenRows> (*)(const NodeAttrs& attrs);

StatusOr<OpenRows> TextLines(const NodeAttrs& attrs) {
  int64_t skipped = 0;
  MR_RETURN_IF_ERROR(ReadAttrs(attrs, "skip_header_lines", &skipped));
  if (skipped < 0) return InvalidArgument("skip_header_lines must be >= 0, got ", skipped);
  return OpenRows([skipped](const std::string& path) -> StatusOr<std::unique_ptr<Rows>> {
    MR_ASSIGN_OR_RETURN(auto bytes, OpenBytes(path, Compression::kNone));
    SkipByteOrderMark(bytes.get());
    auto rows = std::make_unique<LineRows>(path, std::move(bytes));
    Row row;
    for (int64_t i = 0; i < skipped; ++i) {
      MR_ASSIGN_OR_RETURN(const bool more, rows->Next(&row));
      if (!more) break;
    }
    return rows;
  });
}

StatusOr<OpenRows> Records(const NodeAttrs& attrs) {
  std::string text;
  MR_RETURN_IF_ERROR(ReadAttrs(attrs, "compression_type", &text));
  MR_ASSIGN_OR_RETURN(const RecordCompression compression, ParseRecordCompression(text));
  return OpenRows([compression](const std::string& path) -> StatusOr<std::unique_ptr<Rows>> {
    MR_ASSIGN_OR_RETURN(auto records, RecordReader::Open(FileSystem::Default(), path, compression));
    return std::make_unique<RecordRows>(path, std::move(records));
  });
}

StatusOr<OpenRows> FixedRecords(const NodeAttrs& attrs) {
  FixedLayout layout;
  std::string encoding;
  MR_RETURN_IF_ERROR(ReadAttrs(attrs, "header_bytes", &layout.header, "record_bytes",
                               &layout.record, "footer_bytes", &layout.footer, "hop_bytes",
                               &layout.hop, "encoding", &encoding));
  // So that sums and buffers of two of them are sizes of memory.
  constexpr int64_t kMost = int64_t{1} << 31;
  for (const auto& [name, bytes, least] :
       {std::tuple<const char*, int64_t, int64_t>{"header_bytes", layout.header, 0},
        {"record_bytes", layout.record, 1},
        {"footer_bytes", layout.footer, 0},
        {"hop_bytes", layout.hop, 0}}) {
    if (bytes >= least && bytes <= kMost) continue;
    return InvalidArgument(name, " must be ", least, " to ", kMost, ", got ", bytes);
  }
  if (layout.hop == 0) layout.hop = layout.record;
  MR_ASSIGN_OR_RETURN(const RecordCompression compression, ParseRecordCompression(encoding));
  return OpenRows(
      [layout, compression](const std::string& path) -> StatusOr<std::unique_ptr<Rows>> {
        MR_ASSIGN_OR_RETURN(auto bytes, OpenBytes(path, compression));
        return std::make_unique<FixedRows>(path, std::move(bytes), layout);
      });
}

StatusOr<OpenRows> WholeFiles(const NodeAttrs&) {
  return OpenRows([](const std::string& path) -> StatusOr<std::unique_ptr<Rows>> {
    MR_ASSIGN_OR_RETURN(std::string text, ReadFileToString(FileSystem::Default(), path));
    return std::make_unique<OneRow>(Row{.key = path, .value = std::move(text)});
  });
}

StatusOr<OpenRows> Identities(const NodeAttrs&) {
  return OpenRows([](const std::string& work) -> StatusOr<std::unique_ptr<Rows>> {
    return std::make_unique<OneRow>(Row{.key = work, .value = work});
  });
}

class ReaderKernel : public Kernel {
 public:
  explicit ReaderKernel(MakeOpen make) : make_(make) {}
  Status Init(KernelConstruction* c) override {
    MR_RETURN_IF_ERROR(ReadAttrs(c->attrs(), "container", &container_, "shared_name", &name_));
    if (name_.empty()) name_ = c->node().name();
    MR_ASSIGN_OR_RETURN(open_, make_(c->attrs()));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto reader,
                        ctx->resources()->LookupOrCreate<Reader>(container_, name_, [this] {
                          return StatusOr<std::shared_ptr<Reader>>(std::make_shared<Reader>(open_));
                        }));
    ctx->set_output(0, Tensor::Scalar<ResourceHandle>(ctx->resources()->MakeHandle<Reader>(
                           container_, name_, std::move(reader))));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  const MakeOpen make_;
  std::string container_, name_;
  OpenRows open_;
};

template <MakeOpen kMake>
Status ReaderShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(kMake(c->attrs()).status());
  c->set_output(0, Shape());
  return absl::OkStatus();
}

template <MakeOpen kMake>
OpRegistration RegisterReader(const char* name, const char* attrs) {
  return OpSpec(name, "-> reader_handle: resource", attrs)
      .Stateful()
      .Shape(ReaderShape<kMake>)
      .NotDifferentiable()
      .With(KernelFor<ReaderKernel>(kMake));
}
const OpRegistration kTextLine = RegisterReader<TextLines>(
    "TextLineReaderV2",
    "skip_header_lines: int = 0; container: string = ''; shared_name: string = ''");
const OpRegistration kTFRecord = RegisterReader<Records>(
    "TFRecordReaderV2",
    "container: string = ''; shared_name: string = ''; compression_type: string = ''");
const OpRegistration kFixedLength = RegisterReader<FixedRecords>(
    "FixedLengthRecordReaderV2",
    "header_bytes: int = 0; record_bytes: int; footer_bytes: int = 0; hop_bytes: int = 0; "
    "container: string = ''; shared_name: string = ''; encoding: string = ''");
const OpRegistration kWholeFile = RegisterReader<WholeFiles>(
    "WholeFileReaderV2", "container: string = ''; shared_name: string = ''");
const OpRegistration kIdentity = RegisterReader<Identities>(
    "IdentityReaderV2", "container: string = ''; shared_name: string = ''");

// --- Reads ---------------------------------------------------------------------------------------

// The rows as the outputs: scalars, or vectors when `many`.
Status SetRows(KernelContext* ctx, std::vector<Row> rows, bool many) {
  for (const bool value : {false, true}) {
    MR_ASSIGN_OR_RETURN(const Shape shape,
                        many ? Shape::Make({static_cast<int64_t>(rows.size())}) : Shape::Make({}));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(value ? 1 : 0, shape));
    const auto texts = out->mutable_flat<std::string>();
    for (size_t i = 0; i < rows.size(); ++i) {
      texts[i] = std::move(value ? rows[i].value : rows[i].key);
    }
  }
  return absl::OkStatus();
}

class ReadKernel : public AsyncKernel {
 public:
  explicit ReadKernel(bool many) : many_(many) {}
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    if (const Status status = Begin(ctx, &done); !status.ok()) done(status);
  }

 private:
  Status Begin(KernelContext* ctx, DoneCallback* done) const {
    MR_ASSIGN_OR_RETURN(auto reader, ctx->ResourceInput<Reader>(0));
    MR_ASSIGN_OR_RETURN(auto queue, ctx->ResourceInput<Queue>(1));
    MR_RETURN_IF_ERROR(queue->spec().CheckTypes({DT_STRING}));
    int64_t most = 1;
    if (many_) {
      MR_ASSIGN_OR_RETURN(most, ctx->ScalarInput<int64_t>(2, "num_records"));
      if (most <= 0) return InvalidArgument("num_records must be > 0, got ", most);
    }
    auto finish = [ctx, many = many_,
                   done = std::move(*done)](StatusOr<std::vector<Row>> rows) mutable {
      done(rows.ok() ? SetRows(ctx, *std::move(rows), many) : rows.status());
    };
    reader->Begin({.queue = std::move(queue),
                   .most = most,
                   .io = ctx->io_pool(),
                   .cancellation = ctx->cancellation(),
                   .done = std::move(finish)});
    return absl::OkStatus();
  }

  const bool many_;
};

template <bool kMany>
Status ReadShape(InferenceContext* c) {
  for (int i = 0; i < 2; ++i) c->set_output(i, kMany ? PartialShape({-1}) : PartialShape::Scalar());
  return absl::OkStatus();
}

const OpRegistration kRead =
    OpSpec("ReaderReadV2",
           "reader_handle: resource, queue_handle: resource -> key: string, value: string")
        .Stateful()
        .UsesFiles()
        .WaitsForSteps(WaitsForSteps::kMay)  // for a name in the queue
        .Shape(ReadShape<false>)
        .NotDifferentiable()
        .With(KernelFor<ReadKernel>(false));
const OpRegistration kReadUpTo =
    OpSpec("ReaderReadUpToV2",
           "reader_handle: resource, queue_handle: resource, num_records: int64 -> keys: string, "
           "values: string")
        .Stateful()
        .UsesFiles()
        .WaitsForSteps(WaitsForSteps::kMay)  // for a name in the queue
        .Shape(ReadShape<true>)
        .NotDifferentiable()
        .With(KernelFor<ReadKernel>(true));

// --- State ---------------------------------------------------------------------------------------

struct StateRule {
  StatusOr<PartialShape> operator()(RuleContext*) const { return PartialShape::Scalar(); }
};
template <auto kState>
Status RunState(KernelContext* ctx, const StateRule&) {
  MR_ASSIGN_OR_RETURN(auto reader, ctx->ResourceInput<Reader>(0));
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  out->mutable_raw<int64_t>()[0] = (*reader.*kState)();
  return absl::OkStatus();
}
const OpRegistration kNumRecords =
    OpSpec("ReaderNumRecordsProducedV2", "reader_handle: resource -> records_produced: int64")
        .Stateful()
        .NotDifferentiable()
        .With(RuledKernelFor<StateRule>(RunState<&Reader::num_rows>));
const OpRegistration kNumUnits =
    OpSpec("ReaderNumWorkUnitsCompletedV2", "reader_handle: resource -> units_completed: int64")
        .Stateful()
        .NotDifferentiable()
        .With(RuledKernelFor<StateRule>(RunState<&Reader::num_files>));

class ResetKernel : public AsyncKernel {
 public:
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    StatusOr<std::shared_ptr<Reader>> reader = ctx->ResourceInput<Reader>(0);
    if (!reader.ok()) return done(reader.status());
    (*reader)->Begin(
        {.io = ctx->io_pool(),
         .cancellation = ctx->cancellation(),
         .done = [done = std::move(done)](const auto& ended) mutable { done(ended.status()); }});
  }
};
const OpRegistration kReset = OpSpec("ReaderResetV2", "reader_handle: resource")
                                  .Stateful()
                                  .WaitsForSteps(WaitsForSteps::kMay)  // for a read before it
                                  .Shape(NoOutputShape)
                                  .NotDifferentiable()
                                  .With(KernelFor<ResetKernel>());

}  // namespace
}  // namespace millrace
