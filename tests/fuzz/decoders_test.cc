// SPDX-License-Identifier: Apache-2.0
//
// Decoders of what strangers send, and of files, under a seeded mutator: whatever comes, each
// returns (a value or an error), and a tensor that it returns is bounded. What else a decoder takes
// meanwhile is not measured here.
//
// Every sixteenth input is a valid one, so that a test also sees what a decoder must take: one that
// refused everything would pass otherwise.
//
// The number of inputs is fixed, not the time. $MILLRACE_FUZZ_ROUNDS multiplies it (the target
// decoders_ten_minutes_test), $MILLRACE_FUZZ_SEED begins elsewhere; a failure names its seed.

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <leveldb/env.h>
#include <leveldb/options.h>
#include <leveldb/table_builder.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/arena.h"
#include "core/file_system.h"
#include "core/io_pool.h"
#include "core/run_file.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/table_reader.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster.h"
#include "distributed/testing/unreachable_task.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/step_limit.h"
#include "distributed/transport/tensor_coding.h"
#include "distributed/transport/transport.h"
#include "distributed/transport/transport.pb.h"
#include "distributed/worker/worker.h"
#include "distributed/worker/worker_options.h"
#include "graph/attr.h"
#include "gtest/gtest.h"
#include "proto/master.pb.h"
#include "proto/worker.pb.h"
#include "runtime/training_run.h"
#include "saver/tensor_bundle.h"
#include "tests/fuzz/mutator.h"

namespace millrace {
namespace {

constexpr char kTask[] = "/job:ps/replica:0/task:0";
// Far above what inputs of 64 KiB may lead to.
constexpr int64_t kMaxTensorBytes = int64_t{64} << 20;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

constexpr int kValidInputEach = 16;

// Calls decode(input) for `n` inputs, more where the environment says so. Members of the corpus
// take turns as the valid ones.
void Fuzz(int n, std::vector<std::string> corpus,
          const std::function<void(const std::string&, Mutator*)>& decode) {
  const uint64_t seed = FromEnvironment("MILLRACE_FUZZ_SEED", 1);
  const uint64_t rounds = FromEnvironment("MILLRACE_FUZZ_ROUNDS", 1);
  google::protobuf::SetLogHandler(nullptr);  // it tells of each text that is no UTF-8
  for (uint64_t round = 0; round < rounds; ++round) {
    SCOPED_TRACE(absl::StrCat("MILLRACE_FUZZ_SEED=", seed + round));
    Mutator mutator(seed + round, corpus);
    for (int i = 0; i < n; ++i) {
      const size_t turn = static_cast<size_t>(i / kValidInputEach) % corpus.size();
      decode(i % kValidInputEach == 0 ? corpus[turn] : mutator.Next(), &mutator);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

// In pieces, as the network gives them.
grpc::ByteBuffer BufferOf(const std::string& bytes, Mutator* mutator) {
  std::vector<grpc::Slice> slices;
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t n = std::min<size_t>(bytes.size() - at, 1 + mutator->Below(1 + bytes.size()));
    slices.emplace_back(bytes.substr(at, n));
    at += n;
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::vector<tensorflow::TensorProto> Tensors() {
  std::vector<tensorflow::TensorProto> protos;
  for (const Tensor& tensor :
       {Tensor::Vector<float>({1, 2, 3}), Tensor::Scalar(true), Tensor::Scalar<int64_t>(-1),
        Tensor::Vector<std::string>({"a", "", "long enough for the heap, this one"}),
        *Tensor::Zeros(DT_DOUBLE, *Shape::Make({0, 3}))}) {
    EXPECT_OK(TensorToProto(tensor, &protos.emplace_back()));
  }
  tensorflow::TensorProto& splat = protos.emplace_back();
  splat.set_dtype(tensorflow::DT_INT32);
  splat.mutable_tensor_shape()->add_dim()->set_size(100);
  splat.add_int_val(7);
  tensorflow::TensorProto& variant = protos.emplace_back();
  variant.set_dtype(tensorflow::DT_VARIANT);
  variant.mutable_tensor_shape();
  variant.add_variant_val()->set_type_name("list");
  *variant.mutable_variant_val(0)->add_tensors() = protos[0];
  tensorflow::TensorProto& handle = protos.emplace_back();
  handle.set_dtype(tensorflow::DT_RESOURCE);
  handle.mutable_tensor_shape();
  handle.add_resource_handle_val()->set_name("w");
  return protos;
}

template <typename Request>
std::string Raw(const Request& request) {
  return request.SerializeAsString();
}

// Whether there are any.
bool CheckTensors(const Status& status, const std::vector<DecodedTensor>& tensors) {
  if (!status.ok()) return false;
  int64_t bytes = 0;
  for (const DecodedTensor& tensor : tensors) {
    if (tensor.value.has_value()) bytes += tensor.value.TotalBytes();
  }
  EXPECT_LE(bytes, kMaxTensorBytes);
  return !tensors.empty();
}

// --- Messages ------------------------------------------------------------------------------------

TEST(DecodersTest, MessagesWithTensors) {
  std::vector<std::string> corpus;
  for (const tensorflow::TensorProto& tensor : Tensors()) {
    tensorflow::RunStepRequest run;
    run.set_session_handle("handle");
    run.add_fetch("loss:0");
    run.add_feed()->set_name("x:0");
    *run.mutable_feed(0)->mutable_tensor() = tensor;
    corpus.push_back(Raw(run));
    wire::PushRequest push;
    push.set_step_id(1);
    push.add_tensor()->set_key("key");
    *push.mutable_tensor(0)->mutable_tensor() = tensor;
    corpus.push_back(Raw(push));
    wire::PullResponse pulled;
    pulled.add_tensor()->set_index(3);
    *pulled.mutable_tensor(0)->mutable_tensor() = tensor;
    pulled.set_last(true);
    corpus.push_back(Raw(pulled));
    tensorflow::RunCallableRequest call;
    call.set_handle(1);
    *call.add_feed() = tensor;
    corpus.push_back(Raw(call));
  }
  int runs = 0, calls = 0, pushes = 0;  // that were accepted
  Fuzz(100'000, corpus, [&](const std::string& bytes, Mutator* mutator) {
    const grpc::ByteBuffer buffer = BufferOf(bytes, mutator);
    std::vector<DecodedTensor> tensors;
    tensorflow::RunStepRequest run;
    tensorflow::RunCallableRequest call;
    wire::PushRequest push;
    Status read;
    switch (mutator->Below(3)) {
      case 0:
        read = DecodeMessage("Fuzz", buffer, 2, TensorField::kNamedOrIndexed, &tensors, &run);
        runs += CheckTensors(read, tensors) ? 1 : 0;
        return;
      case 1:
        read = DecodeMessage("Fuzz", buffer, 3, TensorField::kTensor, &tensors, &call);
        calls += CheckTensors(read, tensors) ? 1 : 0;
        return;
      default:
        read = DecodeMessage("Fuzz", buffer, 1, TensorField::kNamedOrIndexed, &tensors, &push);
        pushes += CheckTensors(read, tensors) ? 1 : 0;
    }
  });
  // Of the 6,250 valid inputs a quarter is of each kind, and a third of these meets its decoder.
  EXPECT_GT(runs, 100);
  EXPECT_GT(calls, 100);
  EXPECT_GT(pushes, 100);
}

TEST(DecodersTest, SessionTermsAndStatusPayloadsAndStepLimits) {
  tensorflow::CreateWorkerSessionRequest with_terms;
  with_terms.set_session_handle("handle");
  AddSessionTerms({.run = {.name = "/logs/a",
                           .id = "0123456789abcdef0123456789abcdef",
                           .is_chief = true,
                           .chief = "chief",
                           .epoch = 3},
                   .lease = absl::Seconds(60)},
                  &with_terms);
  tensorflow::RunGraphResponse failed;
  const Status ended = RunEndedError("Session", {.name = "/logs/a", .id = "id"},
                                     {.global_step = 7, .checkpoint = "c", .reason = "r"});
  AddPayloads(ended, &failed);
  wire::StepLimit limit;
  limit.set_timeout_in_us(1'000'000);
  int with_runs = 0, beside = 0, alone = 0, limits = 0;  // that were understood
  Fuzz(30'000, {Raw(with_terms), Raw(failed), PayloadBytes(ended), Raw(limit)},
       [&](const std::string& bytes, Mutator*) {
         tensorflow::CreateWorkerSessionRequest create;
         if (create.ParseFromString(bytes)) {
           const auto terms = SessionTermsOf(create);
           if (terms.ok()) {
             EXPECT_OK(CheckRun(terms->run));
             with_runs += terms->run.name == "/logs/a" ? 1 : 0;
             EXPECT_GE(terms->lease, absl::ZeroDuration());
             EXPECT_LE(terms->lease, absl::Hours(24));
           }
         }
         tensorflow::RunGraphResponse response;
         if (response.ParseFromString(bytes)) {
           const Status status = WithPayloadsOf(absl::AbortedError("a"), response);
           EXPECT_FALSE(status.ok());
           beside += RunEndOf(status).has_value() ? 1 : 0;
           limits += StepDeadlineOf(response) != absl::InfiniteFuture() ? 1 : 0;
         }
         const Status status = WithPayloads(absl::AbortedError("a"), bytes);
         EXPECT_FALSE(status.ok());
         alone += RunEndOf(status).has_value() ? 1 : 0;
         wire::RunEnd end;
         if (end.ParseFromString(bytes)) FromWire(end);
       });
  // The valid inputs alone are more than 400 of each.
  EXPECT_GT(with_runs, 100);
  EXPECT_GT(beside, 100);
  EXPECT_GT(alone, 100);
  EXPECT_GT(limits, 100);
}

// --- What a worker is asked for ------------------------------------------------------------------

tensorflow::RegisterGraphRequest SmallGraph() {
  tensorflow::RegisterGraphRequest request;
  request.set_session_handle("session");
  tensorflow::GraphDef* const graph = request.mutable_graph_def();
  graph->mutable_versions()->set_producer(134);
  const auto add = [&](const char* op, const char* name) {
    tensorflow::NodeDef* const node = graph->add_node();
    node->set_name(name);
    node->set_op(op);
    node->set_device(absl::StrCat(kTask, "/device:CPU:0"));
    return node;
  };
  const auto set = [](tensorflow::NodeDef* node, const char* attr, const auto& value) {
    SetAttr(value, &(*node->mutable_attr())[attr]);
  };
  auto* const arg = add("_Arg", "arg");
  set(arg, "T", DT_FLOAT);
  set(arg, "index", int64_t{0});
  auto* const constant = add("Const", "constant");
  set(constant, "dtype", DT_FLOAT);
  set(constant, "value", Tensor::Vector<float>({1, 2, 3}));
  auto* const result = add("_Retval", "result");
  result->add_input("arg");
  set(result, "T", DT_FLOAT);
  set(result, "index", int64_t{0});
  auto* const recv = add("_Recv", "recv");
  set(recv, "tensor_type", DT_FLOAT);
  set(recv, "tensor_name", std::string("edge"));
  set(recv, "send_device", std::string("/job:worker/replica:0/task:0/device:CPU:0"));
  set(recv, "recv_device", absl::StrCat(kTask, "/device:CPU:0"));
  set(recv, "send_device_incarnation", int64_t{42});
  set(recv, "client_terminated", false);
  return request;
}

class WorkerDecodersTest : public ::testing::Test {
 protected:
  WorkerDecodersTest() {
    WorkerOptions options;
    options.task = kTask;
    options.own_arena = Arena::Make(1);
    options.io_pool = IoPool::Default();
    options.peer = [](absl::string_view task) -> std::shared_ptr<Transport> {
      return std::make_shared<UnreachableTask>(std::string(task));
    };
    worker_ = std::make_unique<Worker>(std::move(options));
    Open();
  }
  void Open() {
    tensorflow::CreateWorkerSessionRequest request;
    request.set_session_handle("session");
    EXPECT_OK(worker_->CreateWorkerSession(request));
  }
  std::unique_ptr<Worker> worker_;
};

TEST_F(WorkerDecodersTest, RegisteredGraphs) {
  int registered = 0;
  Fuzz(6'000, {Raw(SmallGraph())}, [&](const std::string& bytes, Mutator* mutator) {
    tensorflow::RegisterGraphRequest request;
    if (!DecodeMessage("RegisterGraph", BufferOf(bytes, mutator), &request).ok()) return;
    tensorflow::RegisterGraphResponse response;
    if (worker_->RegisterGraph(std::move(request), nullptr, &response).ok()) ++registered;
    if (registered % 1000 != 999) return;
    // So that they do not gather.
    tensorflow::DeleteWorkerSessionRequest close;
    close.set_session_handle("session");
    EXPECT_OK(worker_->DeleteWorkerSession(close));
    Open();
  });
  EXPECT_GT(registered, 10);  // the mutator leaves some alone
}

TEST_F(WorkerDecodersTest, RunRequests) {
  tensorflow::RegisterGraphRequest small = SmallGraph();
  small.mutable_graph_def()->mutable_node()->RemoveLast();  // nothing that would wait
  tensorflow::RegisterGraphResponse response;
  ASSERT_OK(worker_->RegisterGraph(std::move(small), nullptr, &response));
  tensorflow::RunGraphRequest run;
  run.set_session_handle("session");
  run.set_graph_handle(response.graph_handle());
  run.set_step_id(1);
  auto* const send = run.add_send();
  ASSERT_OK(TensorToProto(Tensor::Vector<float>({1, 2}), send->mutable_tensor()));
  run.mutable_exec_opts()->set_record_costs(true);
  int64_t step = 1;
  int ran = 0;
  Fuzz(6'000, {Raw(run)}, [&](const std::string& bytes, Mutator* mutator) {
    tensorflow::RunGraphRequest request;
    std::vector<DecodedTensor> tensors;
    const Status read = DecodeMessage("RunGraphRequest", BufferOf(bytes, mutator), 3,
                                      TensorField::kNamedOrIndexed, &tensors, &request);
    CheckTensors(read, tensors);
    if (!read.ok()) return;
    std::vector<NamedTensor> values;
    for (DecodedTensor& tensor : tensors) {
      values.push_back({tensor.name, std::move(tensor.value), tensor.is_dead});
    }
    request.set_step_id(++step);
    tensorflow::RunGraphResponse answer;
    std::vector<NamedTensor> received;
    int done = 0;
    worker_->RunGraph(request, request, values, /*block=*/true, absl::Now() + absl::Seconds(10),
                      nullptr, &answer, &received, [&](const Status& status) {
                        ++done;
                        if (status.ok()) ++ran;
                      });
    EXPECT_EQ(done, 1);
  });
  EXPECT_GT(ran, 10);
}

// --- Files and variables -------------------------------------------------------------------------

class FileDecodersTest : public ::testing::Test {
 protected:
  FileDecodersTest() { EXPECT_OK(fs_->RecursivelyCreateDirectory(directory_)); }
  ~FileDecodersTest() override { EXPECT_OK(fs_->RecursivelyDelete(directory_)); }
  void Write(const std::string& path, const std::string& bytes) {
    const auto file = fs_->NewWritableFile(path);
    ASSERT_OK(file);
    ASSERT_OK((*file)->Append(bytes));
    ASSERT_OK((*file)->Close());
  }
  std::string Read(const std::string& path) {
    const auto text = ReadFileToString(fs_, path);
    EXPECT_OK(text);
    return text.value_or("");
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string directory_ = absl::StrCat(::testing::TempDir(), "/decoders_", ::getpid());
};

TEST_F(FileDecodersTest, RunFiles) {
  ASSERT_OK(WriteRunFile(fs_, directory_,
                         {.id = "0123456789abcdef0123456789abcdef",
                          .name = "/logs/a",
                          .chief = "chief on host, process 1",
                          .token = "t",
                          .epoch = 3,
                          .since = "today"}));
  ASSERT_OK(WriteRunEnd(fs_, directory_,
                        {.id = "0123456789abcdef0123456789abcdef",
                         .token = "t",
                         .global_step = 7,
                         .goal = 7,
                         .checkpoint = "model.ckpt-7",
                         .reason = "done"}));
  const std::vector<std::string> corpus = {Read(RunFilePath(directory_)),
                                           Read(RunEndFilePath(directory_))};
  const std::string again = JoinPath(directory_, "again");
  ASSERT_OK(fs_->CreateDirectory(again));
  int runs = 0, ends = 0;
  Fuzz(300, corpus, [&](const std::string& bytes, Mutator* mutator) {
    Write(RunFilePath(directory_), bytes);
    Write(RunEndFilePath(directory_), bytes);
    const auto run = ReadRunFile(fs_, directory_);
    // What was read can be written: unknown fields are kept.
    const bool writes = mutator->Below(16) == 0;  // which waits for the disk
    if (run.ok() && run->has_value()) {
      ++runs;
      if (writes) {
        EXPECT_OK(WriteRunFile(fs_, again, **run));
      }
    }
    const auto end = ReadRunEnd(fs_, directory_);
    if (end.ok() && end->has_value()) {
      ++ends;
      if (writes) {
        EXPECT_OK(WriteRunEnd(fs_, again, **end));
      }
    }
  });
  // Nine of the inputs are a valid one of either kind.
  EXPECT_GE(runs, 9);
  EXPECT_GE(ends, 9);
}

TEST_F(FileDecodersTest, TF_CONFIG) {
  int clusters = 0;
  Fuzz(10'000,
       {R"({"cluster": {"ps": ["a:1", "b:2"], "worker": ["c:3"], "chief": ["d:4"]},
            "task": {"type": "ps", "index": 1}, "environment": "cloud"})",
        R"({"cluster": {"worker": {"3": "c:3", "5": "[::1]:80"}}, "task": {"type": "worker",
            "index": "5"}})"},
       [&](const std::string& bytes, Mutator*) {
         const auto config = ClusterConfig::Parse(bytes);
         if (config.ok() && !config->is_local()) {
           ++clusters;
           EXPECT_TRUE(ClusterSpec::FromProto(config->cluster().ToProto()).ok());
         }
       });
  EXPECT_GE(clusters, 300);  // of 625 valid inputs half is of each form
}

// A checkpoint whose index is written anew, and what becomes of reading it.
class CheckpointDecodersTest : public FileDecodersTest {
 protected:
  CheckpointDecodersTest() { Save(); }
  void Save() {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix_));
    ASSERT_OK(writer->Add("dense/bias", Tensor::Vector<float>({1, 2, 3})));
    ASSERT_OK(writer->Add("global_step", Tensor::Scalar<int64_t>(7)));
    ASSERT_OK(writer->Add("words", Tensor::Vector<std::string>({"a", "", "mill race"})));
    ASSERT_OK(writer->Finish());
  }
  void ReadWith(const std::string& index) {
    Write(index_, index);
    const auto reader = BundleReader::Open(fs_, prefix_);
    if (!reader.ok()) {
      ++refused_;
      return;
    }
    ++opened_;
    (*reader)->CheckFiles().IgnoreError();
    for (const BundleReader::Entry& entry : (*reader)->entries()) {
      const auto tensor = (*reader)->Read(entry.name);
      if (!tensor.ok()) continue;
      ++read_;
      EXPECT_LE(tensor->TotalBytes(), kMaxTensorBytes);
    }
  }

  const std::string prefix_ = JoinPath(directory_, "ckpt");
  const std::string index_ = BundleIndexPath(prefix_);
  int opened_ = 0, refused_ = 0;  // indexes
  int read_ = 0;                  // tensors
};

TEST_F(CheckpointDecodersTest, IndexesOfCheckpoints) {
  Fuzz(600, {Read(index_)}, [&](const std::string& bytes, Mutator*) { ReadWith(bytes); });
  // 38 inputs are valid; of the others the checksums tell.
  EXPECT_GE(opened_, 38);
  EXPECT_GE(read_, 3 * 38);
  EXPECT_GT(refused_, 0);
}

// A table in memory.
class StringFile : public leveldb::WritableFile {
 public:
  leveldb::Status Append(const leveldb::Slice& data) override {
    bytes.append(data.data(), data.size());
    return leveldb::Status::OK();
  }
  leveldb::Status Close() override { return leveldb::Status::OK(); }
  leveldb::Status Flush() override { return leveldb::Status::OK(); }
  leveldb::Status Sync() override { return leveldb::Status::OK(); }
  std::string bytes;
};

using TableEntries = std::vector<std::pair<std::string, std::string>>;

std::string TableOf(const TableEntries& entries) {
  StringFile file;
  leveldb::Options options;
  options.compression = leveldb::kNoCompression;
  leveldb::TableBuilder builder(options, &file);
  for (const auto& [key, value] : entries) builder.Add(key, value);
  EXPECT_TRUE(builder.Finish().ok());
  return file.bytes;
}

// Behind right checksums: the header and the entries themselves.
TEST_F(CheckpointDecodersTest, EntriesOfIndexes) {
  TableEntries entries;
  std::vector<std::string> values;
  {
    ASSERT_OK_AND_ASSIGN(const auto table, TableReader::Open(fs_, index_));
    const auto it = table->NewIterator();
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      entries.emplace_back(std::string(it->key()), std::string(it->value()));
      values.emplace_back(it->value());
    }
    ASSERT_OK(it->status());
  }
  ASSERT_EQ(entries.size(), 4u);  // with the header
  Fuzz(600, values, [&](const std::string& bytes, Mutator* mutator) {
    // A valid one stays where it is.
    const auto same = std::find(values.begin(), values.end(), bytes);
    const size_t place = same != values.end() ? static_cast<size_t>(same - values.begin())
                                              : mutator->Below(values.size());
    TableEntries changed = entries;
    changed[place].second = bytes;
    ReadWith(TableOf(changed));
  });
  EXPECT_GE(opened_, 38);
  EXPECT_GE(read_, 3 * 38);
  EXPECT_GT(refused_, 0);
}

}  // namespace
}  // namespace millrace
