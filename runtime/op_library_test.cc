// SPDX-License-Identifier: Apache-2.0
#include "runtime/op_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/file_system.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/partial_value.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "proto/graph.pb.h"
#include "runtime/kernel.h"
#include "runtime/session.h"

// covers: graphs: a shared library of ops is taken whole, by open sessions and imports too, or
//   refused by name and leaves nothing: another version (its code never runs), an existing op or
//   kernel, a wrong spec, an initialiser that throws, a file that is no library

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kExists = absl::StatusCode::kAlreadyExists;

// The program's own op of which kernel_only.so has the kernel.
const OpRegistration kForLibrary =
    OpSpec("TestForLibrary", "x: T -> y: T", "T: {float, double}").Rule<UnchangedShapeRule>();

std::string LibraryPath(const std::string& kind) {
  return absl::StrCat("runtime/testing/", kind, ".so");
}
std::string OwnOp(const std::string& kind) { return absl::StrCat("LibraryOp_", kind); }

// A file of the test's own.
std::string TestPath(const std::string& name) { return JoinPath(::testing::TempDir(), name); }
void Write(const std::string& path, absl::string_view bytes) {
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), path, bytes));
}
std::string Bytes(const std::string& path) {
  auto bytes = ReadFileToString(FileSystem::Posix(), path);
  EXPECT_OK(bytes.status());
  return bytes.ok() ? *bytes : std::string();
}

void ExpectRefused(const std::string& path, absl::StatusCode code, const std::string& text) {
  for (int again = 0; again < 2; ++again) {
    const auto loaded = LoadOpLibrary(path);
    EXPECT_EQ(loaded.status().code(), code) << loaded.status();
    EXPECT_TRUE(absl::StartsWith(loaded.status().message(),
                                 absl::StrCat("LoadOpLibrary '", path, "': ", text)))
        << loaded.status();
  }
}

TEST(OpLibrary, BringsOpsForEverythingThatRunsAlready) {
  const std::string op = OwnOp("good");
  EXPECT_EQ(LookUpOp(op), nullptr);
  // A graph that is imported before keeps a node of which nothing is known.
  tensorflow::GraphDef early;
  auto& unknown = *early.add_node();
  unknown.set_name("early");
  unknown.set_op(op);
  ASSERT_OK_AND_ASSIGN(auto unaware, NewSession());
  ASSERT_OK(unaware->Extend(early));
  EXPECT_STATUS(unaware->Run({}, {}, {"early"}).status(), absl::StatusCode::kUnimplemented,
                "has no kernel registered for device type CPU; registered kernels: none");
  // A session that is open, and has run, before.
  Scope root;
  const Output x = Const<float>(root.WithName("x"), {1, -3});
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK(session->Run({}, {x}).status());

  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> ops, LoadOpLibrary(LibraryPath("good")));
  EXPECT_EQ(ops, std::vector<std::string>{op});

  const Output y = BuildOp(root.WithName("y"), op, {x});
  ASSERT_OK_AND_ASSIGN(const auto gradients, AddGradients(root, {y}, {x}));
  const Output dx = std::get<Output>(gradients[0]);
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {y, dx}));
  ExpectTensorEqual(out[0], TensorOf<float>({2}, {2, -6}));
  ExpectTensorEqual(out[1], TensorOf<float>({2}, {2, 2}));

  // By name, from a message, in a session of its own.
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef def, root.ToGraphDef());
  ASSERT_OK_AND_ASSIGN(auto other, NewSession());
  ASSERT_OK(other->Extend(def));
  ASSERT_OK_AND_ASSIGN(const auto imported, other->Run({}, {"y:0"}));
  ExpectTensorEqual(imported[0], out[0]);

  EXPECT_STATUS(unaware->Run({}, {}, {"early"}).status(), absl::StatusCode::kUnimplemented,
                "; add the node again: its op has been registered since");
  EXPECT_STATUS(unaware->Run({}, {"early:0"}).status(), absl::StatusCode::kUnimplemented,
                "; add the node again: its op has been registered since");

  // What the op makes of int values whose elements are known in part.
  EXPECT_NE(PartialValueRule::Find(op), nullptr);
}

TEST(OpLibrary, IsLoadedOnce) {
  ASSERT_OK_AND_ASSIGN(const auto first, LoadOpLibrary(LibraryPath("good")));
  const OpEntry* const entry = LookUpOp(OwnOp("good"));
  ASSERT_NE(entry, nullptr);
  ASSERT_OK_AND_ASSIGN(const auto second, LoadOpLibrary(LibraryPath("good")));
  EXPECT_EQ(first, second);
  const std::string link = TestPath("link.so");
  const std::unique_ptr<char, decltype(&std::free)> whole(
      realpath(LibraryPath("good").c_str(), nullptr), &std::free);
  unlink(link.c_str());
  ASSERT_EQ(symlink(whole.get(), link.c_str()), 0);
  ASSERT_OK_AND_ASSIGN(const auto third, LoadOpLibrary(link));
  EXPECT_EQ(first, third);
  EXPECT_EQ(LookUpOp(OwnOp("good")), entry);
}

TEST(OpLibrary, MayBringAKernelForAnOpOfTheProgram) {
  EXPECT_FALSE(HasAnyKernel("TestForLibrary"));
  ASSERT_OK_AND_ASSIGN(const auto ops, LoadOpLibrary(LibraryPath("kernel_only")));
  EXPECT_TRUE(ops.empty());
  Scope root;
  const Output y = BuildOp(root, "TestForLibrary", {Const<float>(root, {4})});
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {y}));
  ExpectTensorEqual(out[0], TensorOf<float>({1}, {8}));
}

TEST(OpLibrary, IsRefusedWholeWhenAnythingInItIsWrong) {
  struct Case {
    const char* kind;
    absl::StatusCode code;
    std::string text;
  };
  const std::string version = kVersion;
  const std::string minor = version.substr(0, version.rfind('.'));
  const std::vector<Case> cases = {
      {"other_version", kPrecondition,
       absl::StrCat("must be built for Millrace ", minor, " (this program is ", version,
                    "), got one built for 0.1.9; build it again with the headers of this version")},
      {"no_version", kInvalid,
       "must say which version of Millrace it is built for, got none; put MILLRACE_OP_LIBRARY() "
       "into one of its sources (runtime/op_library.h)"},
      {"nothing", kInvalid,
       "must register at least one op or kernel, got none; is it linked with a copy of Millrace of "
       "its own?"},
      {"known_op", kExists, "op kinds must be new to the program, got 'MatMul', which it has"},
      {"known_kernel", kExists,
       "kernel of op 'MatMul' on CPU [T in {string, float}]: no node may fit two kernels, got one "
       "of the program on CPU"},
      {"bad_spec", kInvalid, "Op 'LibraryBad': input 'x float': must have the form 'name: type'"},
      {"twice", kExists, "Op 'LibraryOp_twice': name must be registered once, got two"},
      {"two_kernels", kExists,
       "kernel of op 'LibraryOp_two_kernels' on CPU: no node may fit two kernels, got one of the "
       "same library on CPU [T in {float}]"},
      {"kernel_of_no_op", absl::StatusCode::kNotFound,
       "kernel of op 'LibraryNoOp' on CPU: its op must be registered by the program or by the "
       "library, got neither"},
      {"throws", absl::StatusCode::kInternal,
       "an initialiser: an exception must not leave it, got stoi"},
      {"loads_another", absl::StatusCode::kInternal,
       "an initialiser: an exception must not leave it, got LoadOpLibrary 'another.so': must not "
       "be called by what runs while a library is loaded"},
      {"missing_symbol", kInvalid, "must be a library that this program can load, got: "},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.kind);
    const std::vector<const OpEntry*> before = AllOps();
    const std::string kernels = DescribeKernels("MatMul");
    ExpectRefused(LibraryPath(c.kind), c.code, c.text);
    EXPECT_EQ(AllOps(), before);
    EXPECT_EQ(FindOp(OwnOp(c.kind)).status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(PartialValueRule::Find(OwnOp(c.kind)), nullptr);
    EXPECT_FALSE(HasAnyKernel(OwnOp(c.kind)));
    EXPECT_EQ(DescribeKernels("MatMul"), kernels);
  }
  EXPECT_OK(OpRegistrationStatus());
  // The loader says which symbol.
  EXPECT_STATUS(LoadOpLibrary(LibraryPath("missing_symbol")).status(), kInvalid,
                "undefined symbol: ");
  EXPECT_STATUS(LoadOpLibrary(LibraryPath("missing_symbol")).status(), kInvalid,
                "; a program that Millrace is linked into exports its symbols (-rdynamic)");
}

TEST(OpLibrary, MustBeALibrary) {
  const std::string library = Bytes(LibraryPath("also_good"));
  Write(TestPath("text.so"), std::string(2000, 'x'));
  Write(TestPath("empty.so"), "");
  Write(TestPath("short.so"), library.substr(0, 100));
  Write(TestPath("half.so"), library.substr(0, 3000));
  std::string foreign = library;
  foreign[4] = 1;  // of 32 bits
  Write(TestPath("foreign.so"), foreign);
  struct Case {
    std::string path;
    absl::StatusCode code;
    const char* text;
  };
  const std::vector<Case> cases = {
      {"", absl::StatusCode::kNotFound, "must exist, got no file"},
      {"no/such/library.so", absl::StatusCode::kNotFound, "must exist, got no file"},
      {"libm.so.6", absl::StatusCode::kNotFound, "must exist, got no file"},
      {std::string("a\0b", 3), kInvalid, "path must have no NUL in it"},
      {::testing::TempDir(), kInvalid, "must be a file, got a directory"},
      {"/dev/null", kInvalid, "must be a file, got none"},
      {TestPath("text.so"), kInvalid, "must be a library that this program can load, got: "},
      {TestPath("empty.so"), kInvalid, "must be a library that this program can load, got: "},
      {TestPath("short.so"), kInvalid, "must be a library that this program can load, got: "},
      {TestPath("half.so"), kInvalid,
       "must be a whole library, got a file that ends before its segments do"},
      {TestPath("foreign.so"), kInvalid, "must be a library that this program can load, got: "},
  };
  for (const Case& c : cases) ExpectRefused(c.path, c.code, c.text);
  EXPECT_STATUS(LoadOpLibrary(TestPath("text.so")).status(), kInvalid, "invalid ELF header");
  EXPECT_STATUS(LoadOpLibrary(TestPath("foreign.so")).status(), kInvalid, "wrong ELF class");
}

TEST(OpLibrary, ThatThrewHoldsUpNobodyElse) {
  EXPECT_EQ(LoadOpLibrary(LibraryPath("throws")).status().code(), absl::StatusCode::kInternal);
  // The loader's lock is free: others may load.
  std::thread other([] { EXPECT_OK(LoadOpLibrary(LibraryPath("also_good")).status()); });
  other.join();
  EXPECT_NE(LookUpOp(OwnOp("also_good")), nullptr);
}

TEST(OpLibrary, IsSeenWholeOrNotAtAll) {
  const std::string path = TestPath("seen.so"), op = OwnOp("seen");
  Write(path, Bytes(LibraryPath("seen")));
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done.load()) {
      if (LookUpOp(op) == nullptr) continue;
      EXPECT_TRUE(HasAnyKernel(op));
      EXPECT_NE(PartialValueRule::Find(op), nullptr);
    }
  });
  EXPECT_OK(LoadOpLibrary(path).status());
  EXPECT_NE(LookUpOp(op), nullptr);
  done.store(true);
  reader.join();
}

TEST(OpLibrary, ThatHasChangedIsNotLoadedAgain) {
  const std::string path = TestPath("changes.so");
  Write(path, Bytes(LibraryPath("changes")));
  ASSERT_OK(LoadOpLibrary(path).status());
  Write(path, Bytes(LibraryPath("good")));
  EXPECT_STATUS(LoadOpLibrary(path).status(), kPrecondition,
                "must stay as it is while a program uses it, got a file that has changed since it "
                "was loaded; start the program again to load it");
}

// Op libraries that are built with an installed Millrace need that name. The program has Millrace.
TEST(OpLibrary, TheNameOfTheSharedLibraryIsTakenAndBringsNoSecondCopy) {
  // A library that does not say otherwise makes stacks executable.
  const auto stack = [] {
    std::ifstream maps("/proc/self/maps");
    std::string line;
    while (std::getline(maps, line) && !absl::StrContains(line, "[stack]")) {
    }
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    return words.size() > 1 ? words[1] : "";
  };
  const std::string before = stack();
  ASSERT_OK(LoadOpLibrary(LibraryPath("good")).status());
  const std::vector<std::string> parts = absl::StrSplit(kVersion, '.');
  const std::string name = absl::StrCat("libmillrace.so.", parts[0], ".", parts[1]);
  void* const library = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr) << dlerror();
  EXPECT_EQ(dlsym(library, "millrace_version"), nullptr);
  dlclose(library);
  EXPECT_EQ(stack(), before);
}

TEST(OpLibrary, InTheProcessAlreadyIsRefused) {
  const std::string path = LibraryPath("opened_otherwise");
  // Its registrations act at once: nobody collects them.
  ASSERT_NE(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
  EXPECT_NE(LookUpOp(OwnOp("opened_otherwise")), nullptr);
  ExpectRefused(path, kPrecondition,
                "must be loaded by LoadOpLibrary alone, got a library that is in the process "
                "already, linked or opened otherwise");
}

}  // namespace
}  // namespace millrace
