// SPDX-License-Identifier: Apache-2.0
//
// Bad input given to whole programs: exit code 1 (128 where somebody is only missing), one message
// with code and text, in time.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "formats/npy.h"
#include "gtest/gtest.h"
#include "saver/tensor_bundle.h"
#include "tests/cluster/process.h"
#include "tests/errors/error_case.h"

// covers: clusters: wrong programs and messages end in a named error and exit code 1 (128 for a
//   missing task), in time

namespace millrace {
namespace {

constexpr char kLinearTrain[] = "examples/linear/linear_train";

struct ProgramCase {
  const char* name;
  std::string config;  // TF_CONFIG
  std::vector<std::string> args;
  absl::StatusCode code;
  std::vector<std::string> texts;
  absl::Duration deadline = absl::ZeroDuration();
  int exit_code = kExitError;
};

// Runs a program to its end; its output must have "<code>: " (tools of TensorFlow's form print the
// message alone) and all texts in one line.
void ExpectProgramError(const std::string& program, const ProgramCase& c) {
  SCOPED_TRACE(c.name);
  ProcessOptions options;
  options.name = c.name;
  options.program = program;
  options.args = c.args;
  options.env["TF_CONFIG"] = c.config;
  ASSERT_OK_AND_ASSIGN(const auto process, Process::Start(options));
  const auto code = process->WaitForExit(c.deadline + kErrorGrace);
  ASSERT_OK(code.status());
  EXPECT_EQ(*code, c.exit_code) << process->output();
  const bool bare = !absl::StartsWith(program, "examples/");
  const std::string prefix =
      bare ? std::string() : absl::StrCat(absl::StatusCodeToString(c.code), ": ");
  bool found = false;
  for (const std::string& line : process->lines()) {
    bool all = absl::StrContains(line, prefix);
    for (const std::string& text : c.texts) all = all && absl::StrContains(line, text);
    found |= all;
  }
  EXPECT_TRUE(found) << "no line with " << prefix << " and all texts in:\n" << process->output();
}

// A TF_CONFIG for which nothing is listening anywhere.
std::string Config(const std::string& cluster, const std::string& task) {
  return absl::StrCat("{\"cluster\": ", cluster, ", \"task\": ", task, "}");
}
const char kGoodCluster[] =
    R"({"ps": ["localhost:1"], "master": ["localhost:2"], "worker": ["localhost:3"]})";

TEST(ProgramErrors, AMalformedTfConfigIsRefusedAtOnce) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  const std::string worker = R"({"type": "worker", "index": 0})";
  const std::vector<ProgramCase> cases = {
      {"BadJson", R"({"cluster": {"ps": [)", {}, kInvalid, {"TF_CONFIG: must be JSON", "byte"}},
      {"NotAnObject", "[1, 2]", {}, kInvalid, {"TF_CONFIG: must be a JSON object", "[1,2]"}},
      {"NotAClusterObject", R"({"cluster": 7})", {}, kInvalid, {"cluster must be an object", "7"}},
      {"TwoMasters",
       Config(R"({"master": ["localhost:2", "localhost:4"], "ps": ["localhost:1"]})", worker),
       {},
       kInvalid,
       {"cluster.master must have exactly 1 task, got 2"}},
      {"TwoMastersByKey",
       Config(R"({"master": ["localhost:2"], "master": ["localhost:4"]})", worker),
       {},
       kInvalid,
       {"a key must be given once, got 'master' twice"}},
      {"MasterAndChief",
       Config(R"({"master": ["localhost:2"], "chief": ["localhost:4"]})", worker),
       {},
       kInvalid,
       {"either 'chief' or 'master', got both"}},
      {"OnlyParameterServers",
       Config(R"({"ps": ["localhost:1"]})", R"({"type": "ps", "index": 0})"),
       {},
       kInvalid,
       {"must have a chief, master or worker task, got only ps"}},
      {"IndexOutOfRange",
       Config(kGoodCluster, R"({"type": "worker", "index": 5})"),
       {},
       kInvalid,
       {"task.index must be in [0,0] for job 'worker', got 5"}},
      {"NegativeIndex",
       Config(kGoodCluster, R"({"type": "worker", "index": -1})"),
       {},
       kInvalid,
       {"task.index must be an integer >= 0", "-1"}},
      {"IndexThatIsNoNumber",
       Config(kGoodCluster, R"({"type": "worker", "index": "first"})"),
       {},
       kInvalid,
       {"task.index must be an integer >= 0", "first"}},
      {"DuplicateAddresses",
       Config(R"({"ps": ["localhost:1"], "worker": ["localhost:1"]})", worker),
       {},
       kInvalid,
       {"addresses must be unique, got 'localhost:1' for ps[0] and worker[0]"}},
      {"UnknownJob",
       Config(kGoodCluster, R"({"type": "cook", "index": 0})"),
       {},
       kInvalid,
       {"task.type must be one of master, ps, worker", "'cook'"}},
      {"TaskMissing",
       absl::StrCat("{\"cluster\": ", kGoodCluster, "}"),
       {},
       kInvalid,
       {"task must be an object with type and index, got none"}},
      {"AddressWithoutPort",
       Config(R"({"ps": ["localhost"], "worker": ["localhost:3"]})", worker),
       {},
       kInvalid,
       {"the address of ps[0] must be host:port, got 'localhost'"}},
      {"PortTooLarge",
       Config(R"({"ps": ["localhost:65536"], "worker": ["localhost:3"]})", worker),
       {},
       kInvalid,
       {"the address of ps[0] must be host:port, got 'localhost:65536'"}},
      {"AddressThatIsNoText",
       Config(R"({"ps": [1234], "worker": ["localhost:3"]})", worker),
       {},
       kInvalid,
       {"must be host:port, got '1234'"}},
      {"JobsThatAreNoList",
       Config(R"({"ps": "localhost:1", "worker": ["localhost:3"]})", worker),
       {},
       kInvalid,
       {"must be a list of addresses"}},
  };
  for (const ProgramCase& c : cases) ExpectProgramError(kLinearTrain, c);
}

// Listens on a port for as long as it lives.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)), port_(FreePort()) {
    const bool v6 = fd_ >= 0;
    if (!v6) fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 six = {};
    six.sin6_family = AF_INET6;
    six.sin6_addr = in6addr_any;
    six.sin6_port = htons(static_cast<uint16_t>(port_));
    sockaddr_in four = {};
    four.sin_family = AF_INET;
    four.sin_port = htons(static_cast<uint16_t>(port_));
    const int bound = v6 ? bind(fd_, reinterpret_cast<sockaddr*>(&six), sizeof six)
                         : bind(fd_, reinterpret_cast<sockaddr*>(&four), sizeof four);
    EXPECT_EQ(bound, 0);
    EXPECT_EQ(listen(fd_, 1), 0);
  }
  ~Listener() { close(fd_); }
  int port() const { return port_; }

 private:
  int fd_;
  const int port_;
};

TEST(ProgramErrors, APortInUseIsNamedAtOnce) {
  const Listener listener;
  const ClusterPorts ports = {.ps = {listener.port()}, .master = {}, .worker = {FreePort()}};
  ExpectProgramError(kLinearTrain, {"PortInUse",
                                    TfConfig(ports, "ps", 0),
                                    {},
                                    absl::StatusCode::kFailedPrecondition,
                                    {absl::StrCat("localhost:", listener.port()), "in use"}});
}

TEST(ProgramErrors, AMissingPeerIsNamedAtTheDeadline) {
  const ClusterPorts ports = FreeClusterPorts(2, 0, 1);
  for (const int missing : {0, 1}) {
    // The other ps is there.
    ProcessOptions other;
    other.name = "ps";
    other.program = kLinearTrain;
    other.env["TF_CONFIG"] = TfConfig(ports, "ps", 1 - missing);
    ASSERT_OK_AND_ASSIGN(const auto ps, Process::Start(other));
    ASSERT_OK(ps->WaitForLine("listens on", absl::Seconds(20)).status());
    ExpectProgramError(kLinearTrain,
                       {"MissingPeer",
                        TfConfig(ports, "worker", 0),
                        {"--session_timeout_secs=1"},
                        absl::StatusCode::kDeadlineExceeded,
                        {absl::StrCat("/job:ps/replica:0/task:", missing),
                         absl::StrCat("localhost:", ports.ps[static_cast<size_t>(missing)])},
                        absl::Seconds(1),
                        kExitRetryable});
  }
}

TEST(ProgramErrors, AMissingPeerIsNamedWhileItIsAwaited) {
  const ClusterPorts ports = FreeClusterPorts(1, 0, 1);
  ProcessOptions options;
  options.name = "worker";
  options.program = kLinearTrain;
  options.args = {"--session_timeout_secs=100"};
  options.env["TF_CONFIG"] = TfConfig(ports, "worker", 0);
  ASSERT_OK_AND_ASSIGN(const auto worker, Process::Start(options));
  // Every 10 s.
  ASSERT_OK_AND_ASSIGN(
      const std::string line,
      worker->WaitForLine("still waiting for response from worker", absl::Seconds(12)));
  EXPECT_TRUE(absl::StrContains(line, "/job:ps/replica:0/task:0")) << line;
}

TEST(ProgramErrors, AModelThatNobodyInitialisesIsNamedAtTheDeadline) {
  // The worker is not the chief, and the master never comes.
  const ClusterPorts ports = FreeClusterPorts(1, 1, 1);
  ProcessOptions options;
  options.name = "ps";
  options.program = kLinearTrain;
  options.env["TF_CONFIG"] = TfConfig(ports, "ps", 0);
  ASSERT_OK_AND_ASSIGN(const auto ps, Process::Start(options));
  ASSERT_OK(ps->WaitForLine("listens on", absl::Seconds(20)).status());
  ExpectProgramError(kLinearTrain, {"NoMaster",
                                    TfConfig(ports, "worker", 0),
                                    {"--session_timeout_secs=2"},
                                    absl::StatusCode::kDeadlineExceeded,
                                    {"variables not initialized: ", "global_step"},
                                    absl::Seconds(2),
                                    kExitRetryable});
}

TEST(ProgramErrors, ANanLossEndsTraining) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectProgramError(kLinearTrain, {"NanInput",
                                    "",
                                    {"--nan_at_step=20", "--max_steps=100000000"},
                                    kInvalid,
                                    {"NaN guard: the loss must be finite, got nan at global step",
                                     "lower the learning rate"}});
  ExpectProgramError(kLinearTrain, {"HugeLearningRate",
                                    "",
                                    {"--learning_rate=1e30", "--max_steps=100000000"},
                                    kInvalid,
                                    {"NaN guard: the loss must be finite, got "}});
}

TEST(ProgramErrors, ANanLossEndsEveryTrainerOfACluster) {
  const ClusterPorts ports = FreeClusterPorts(1, 1, 1);
  std::vector<std::unique_ptr<Process>> tasks;
  for (const char* job : {"ps", "master", "worker"}) {
    ProcessOptions options;
    options.name = job;
    options.program = kLinearTrain;
    options.args = {"--nan_at_step=20", "--max_steps=100000000", "--session_timeout_secs=30"};
    options.env["TF_CONFIG"] = TfConfig(ports, job, 0);
    ASSERT_OK_AND_ASSIGN(tasks.emplace_back(), Process::Start(options));
  }
  for (size_t i : {size_t{1}, size_t{2}}) {
    const auto code = tasks[i]->WaitForExit(absl::Seconds(30));
    ASSERT_OK(code.status());
    EXPECT_EQ(*code, 1) << tasks[i]->output();
    EXPECT_TRUE(tasks[i]->FindLastLine("NaN guard: the loss must be finite, got nan").has_value())
        << tasks[i]->output();
  }
  EXPECT_FALSE(tasks[0]->exit_code().has_value());
}

TEST(ProgramErrors, BadFlagsAreNamed) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectProgramError(kLinearTrain,
                     {"Steps", "", {"--max_steps=0"}, kInvalid, {"--max_steps: must be >= 1"}});
  ExpectProgramError(kLinearTrain,
                     {"Batch", "", {"--batch_size=-3"}, kInvalid, {"--batch_size", "got -3"}});
  ExpectProgramError(kLinearTrain, {"ExportWithoutCheckpoints",
                                    "",
                                    {"--model_dir=x"},
                                    kInvalid,
                                    {"--model_dir: needs --log_dir"}});
}

// A directory with one checkpoint of a finished job.
class DamagedLogDir : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = JoinPath(::testing::TempDir(), absl::StrCat("damaged_", RandomHexName()));
    ProcessOptions options;
    options.program = kLinearTrain;
    options.args = Args(100);
    options.env["TF_CONFIG"] = "";
    ASSERT_OK_AND_ASSIGN(const auto process, Process::Start(options));
    const auto code = process->WaitForExit(absl::Seconds(60));
    ASSERT_OK(code.status());
    ASSERT_EQ(*code, 0) << process->output();
    prefix_ = JoinPath(directory_, "model.ckpt-100");
    ASSERT_TRUE(fs_->FileExists(BundleIndexPath(prefix_))) << process->output();
  }
  void TearDown() override { fs_->RecursivelyDelete(directory_).IgnoreError(); }

  std::vector<std::string> Args(int steps) {
    return {absl::StrCat("--log_dir=", directory_), absl::StrCat("--max_steps=", steps)};
  }
  void ExpectRefused(absl::StatusCode code, const std::string& path) {
    ExpectProgramError(kLinearTrain, {"Restart", "", Args(200), code, {path}});
  }

  FileSystem* const fs_ = FileSystem::Posix();
  std::string directory_, prefix_;
};

TEST_F(DamagedLogDir, ATruncatedIndexIsDataLoss) {
  const std::string path = BundleIndexPath(prefix_);
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(fs_, path));
  ASSERT_OK(WriteFileAtomically(fs_, path, bytes.substr(0, bytes.size() / 2)));
  ExpectRefused(absl::StatusCode::kDataLoss, path);
}

TEST_F(DamagedLogDir, TruncatedDataIsDataLoss) {
  const std::string path = BundleDataPath(prefix_, 0, 1);
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(fs_, path));
  ASSERT_OK(WriteFileAtomically(fs_, path, bytes.substr(0, bytes.size() - 1)));
  ExpectRefused(absl::StatusCode::kDataLoss, path);
}

TEST_F(DamagedLogDir, AFlippedByteOfTheDataIsDataLoss) {
  const std::string path = BundleDataPath(prefix_, 0, 1);
  ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFileToString(fs_, path));
  bytes[0] = static_cast<char>(bytes[0] ^ 1);
  ASSERT_OK(WriteFileAtomically(fs_, path, bytes));
  ExpectRefused(absl::StatusCode::kDataLoss, prefix_);
}

TEST_F(DamagedLogDir, AMissingDataFileIsNamed) {
  const std::string path = BundleDataPath(prefix_, 0, 1);
  ASSERT_OK(fs_->DeleteFile(path));
  ExpectRefused(absl::StatusCode::kNotFound, path);
}

TEST_F(DamagedLogDir, AWholeOneIsTrainedOn) {
  ProcessOptions options;
  options.program = kLinearTrain;
  options.args = Args(200);
  options.env["TF_CONFIG"] = "";
  ASSERT_OK_AND_ASSIGN(const auto process, Process::Start(options));
  EXPECT_OK(process->WaitForLine("First step is 100", absl::Seconds(20)));
  const auto code = process->WaitForExit(absl::Seconds(60));
  ASSERT_OK(code.status());
  EXPECT_EQ(*code, 0) << process->output();
}

// --- run_graph and saved_model_cli ---------------------------------------------------------------

constexpr char kRunGraph[] = "tools/run_graph";
constexpr char kSavedModelCli[] = "tools/saved_model_cli";

struct GraphProgramCase {
  const char* name;
  const char* graph;  // text of a GraphDef
  NamedArrays feeds;
  const char* fetches;
  absl::StatusCode code;
  std::vector<std::string> texts;
};

TEST(ToolErrors, RunGraphRefusesGraphsAndFeeds) {
  const std::string directory =
      JoinPath(::testing::TempDir(), absl::StrCat("run_graph_", RandomHexName()));
  FileSystem* const fs = FileSystem::Posix();
  ASSERT_OK(fs->CreateDirectory(directory));
  const char kIdentity[] =
      "node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } }"
      "  attr { key: 'shape' value { shape { dim { size: 2 } } } } }"
      "node { name: 'y' op: 'Identity' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }";
  const Tensor good = TensorOf<float>({2}, {1, 2});
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  const std::vector<GraphProgramCase> cases = {
      {"NotAGraph", "nodes of another kind {", {}, "y:0", absl::StatusCode::kDataLoss, {".pbtxt"}},
      {"UnknownOp",
       "node { name: 'y' op: 'MadeUpOp' }",
       {},
       "y:0",
       absl::StatusCode::kUnimplemented,
       {"MadeUpOp"}},
      {"CyclicGraph",
       "node { name: 'a' op: 'Identity' input: 'b' attr { key: 'T' value { type: DT_FLOAT } } }"
       "node { name: 'b' op: 'Identity' input: 'a' attr { key: 'T' value { type: DT_FLOAT } } }",
       {},
       "a:0",
       kInvalid,
       {"cycle", "'a'", "'b'"}},
      {"EdgeToOutputThatIsNotThere",
       "node { name: 'a' op: 'NoOp' }"
       "node { name: 'b' op: 'Identity' input: 'a:1' attr { key: 'T' value { type: DT_FLOAT } } }",
       {},
       "b:0",
       kInvalid,
       {"'b'", "'a:1'"}},
      {"FeedOfWrongDtype",
       kIdentity,
       {{"x:0", TensorOf<int32_t>({2}, {1, 2})}},
       "y:0",
       kInvalid,
       {"'x:0'", "int32", "float"}},
      {"FeedOfWrongShape",
       kIdentity,
       {{"x:0", TensorOf<float>({3}, {1, 2, 3})}},
       "y:0",
       kInvalid,
       {"'x:0'", "[3]", "[2]"}},
      {"FeedMissing", kIdentity, {}, "y:0", kInvalid, {"'x'", "float", "[2]"}},
      {"FeedOfNoTensor", kIdentity, {{"z:0", good}}, "y:0", absl::StatusCode::kNotFound, {"z:0"}},
      {"FetchOfNoTensor", kIdentity, {{"x:0", good}}, "z:0", absl::StatusCode::kNotFound, {"z"}},
      {"UninitialisedVariable",
       "node { name: 'v' op: 'VarHandleOp' attr { key: 'dtype' value { type: DT_FLOAT } }"
       "  attr { key: 'shape' value { shape { } } } }"
       "node { name: 'y' op: 'ReadVariableOp' input: 'v'"
       "  attr { key: 'dtype' value { type: DT_FLOAT } } }",
       {},
       "y:0",
       absl::StatusCode::kFailedPrecondition,
       {"ninitialized", "v"}},
  };
  for (const GraphProgramCase& c : cases) {
    const std::string graph = JoinPath(directory, "graph.pbtxt");
    const std::string feeds = JoinPath(directory, "feeds.npz");
    const std::string out = JoinPath(directory, "out.npz");
    ASSERT_OK(WriteFileAtomically(fs, graph, c.graph));
    ASSERT_OK(WriteNpz(fs, feeds, c.feeds));
    ExpectProgramError(kRunGraph,
                       {c.name,
                        "",
                        {"--graph", graph, "--feeds", feeds, "--fetches", c.fetches, "--out", out},
                        c.code,
                        c.texts});
    EXPECT_FALSE(fs->FileExists(out)) << c.name;
  }
  const std::string missing = JoinPath(directory, "no_such_graph.pb");
  ExpectProgramError(kRunGraph, {"NoSuchFile",
                                 "",
                                 {"--graph", missing, "--fetches", "y:0", "--out", "x"},
                                 absl::StatusCode::kNotFound,
                                 {missing}});
  fs->RecursivelyDelete(directory).IgnoreError();
}

TEST_F(DamagedLogDir, AnExportWithoutItsDataFileIsRefusedByName) {
  const std::string model = JoinPath(directory_, "model");
  ProcessOptions options;
  options.program = kLinearTrain;
  options.args = Args(200);
  options.args.push_back(absl::StrCat("--model_dir=", model));
  options.env["TF_CONFIG"] = "";
  ASSERT_OK_AND_ASSIGN(const auto process, Process::Start(options));
  const auto code = process->WaitForExit(absl::Seconds(60));
  ASSERT_OK(code.status());
  ASSERT_EQ(*code, 0) << process->output();
  const std::string data = BundleDataPath(JoinPath(model, "variables/variables"), 0, 1);
  ASSERT_OK(fs_->DeleteFile(data));
  const std::vector<std::string> args = {
      "run",           "--dir",  model, "--tag_set", "serve", "--signature_def", "serving_default",
      "--input_exprs", "x=[1.0]"};
  ExpectProgramError(kSavedModelCli, {"NoData", "", args, absl::StatusCode::kNotFound, {data}});
  ASSERT_OK(fs_->DeleteFile(JoinPath(model, "saved_model.pb")));
  ExpectProgramError(kSavedModelCli, {"NoModel", "", args, absl::StatusCode::kNotFound, {model}});
}

}  // namespace
}  // namespace millrace
