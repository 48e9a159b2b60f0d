// SPDX-License-Identifier: Apache-2.0
//
// Look-up tables on a cluster: those of fixed content are each task's own, those that change are on
// the parameter server and shared.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/replica_device_setter.h"
#include "distributed/testing/two_servers.h"
#include "gmock/gmock.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/lookup.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/lookup/lookup_table.h"
#include "runtime/session.h"
#include "saver/saver.h"

namespace millrace {
namespace {

FileSystem* const kFiles = FileSystem::Posix();

Tensor Strings(std::initializer_list<std::string> values) {
  return Tensor::Vector<std::string>(values);
}
Tensor Longs(std::initializer_list<int64_t> values) { return Tensor::Vector<int64_t>(values); }

// A vocabulary, and counts of words that change.
struct Model {
  Model(const DeviceFunction& device, const Tensor& vocabulary) {
    const Scope model = root.WithDevice(device);
    words = Placeholder(model.WithName("words"), DT_STRING, {-1});
    table = IndexTableFromTensor(model.WithName("ids"), vocabulary);
    ids = Lookup(model, table, words);
    counts = MutableTable(model.WithName("counts"), DT_STRING, Tensor::Scalar<int64_t>(0));
    count = Lookup(model, counts, words);
    add = LookupTableInsertV2(model.WithName("add"), counts.handle, words, ids);
    init = TablesInitializer(model);
  }
  Scope root;
  Output words, ids, count;
  IndexTable table;
  LookupTable counts;
  Operation add, init;
};

Tensor Asked(Session* session, const Output& output, const Output& words,
             std::initializer_list<std::string> values) {
  const auto out = session->Run({{words, Strings(values)}}, {output});
  EXPECT_OK(out.status());
  return out.ok() ? (*out)[0] : Tensor();
}

TEST(TablesOnACluster, OfFixedContentAreASessionsOwnAndOthersAreShared) {
  TwoServers servers;
  const DeviceFunction device = ReplicaDeviceSetter(servers.Config("worker"));
  // Two programs with a node of one name and other vocabularies.
  const Model one(device, Strings({"a", "b"})), two(device, Strings({"b", "c", "d"}));
  EXPECT_EQ(one.table.table.handle.node()->requested_device(), "/job:worker/task:0");
  EXPECT_EQ(one.counts.handle.node()->requested_device(), "/job:ps/task:0");
  ASSERT_OK_AND_ASSIGN(const auto first, servers.NewSession(one.root));
  ASSERT_OK_AND_ASSIGN(const auto second, servers.NewSession(two.root, /*over_network=*/true));
  EXPECT_STATUS(first->Run({{one.words, Strings({"a"})}}, {one.ids}),
                absl::StatusCode::kFailedPrecondition,
                "Table not initialized. HashTable 'ids/hash_table'");
  ASSERT_OK(first->Run({}, {}, {one.init}).status());
  ASSERT_OK(second->Run({}, {}, {two.init}).status());
  ExpectTensorEqual(Asked(first.get(), one.ids, one.words, {"b", "c"}), Longs({1, -1}));
  ExpectTensorEqual(Asked(second.get(), two.ids, two.words, {"b", "c"}), Longs({0, 1}));

  // What one session puts into the table on the server, the other finds.
  ASSERT_OK(first->Run({{one.words, Strings({"a", "b"})}}, {}, {one.add}).status());
  ExpectTensorEqual(Asked(second.get(), two.count, two.words, {"b", "a", "x"}), Longs({1, 0, 0}));
  ASSERT_OK(second->Run({{two.words, Strings({"c"})}}, {}, {two.add}).status());
  ExpectTensorEqual(Asked(first.get(), one.count, one.words, {"c"}), Longs({1}));

  // A session that begins later has a table of its own, too.
  ASSERT_OK(first->Close());
  ASSERT_OK_AND_ASSIGN(const auto third, servers.NewSession(two.root));
  EXPECT_STATUS(third->Run({{two.words, Strings({"b"})}}, {two.ids}),
                absl::StatusCode::kFailedPrecondition, "Table not initialized.");
  ASSERT_OK(third->Run({}, {}, {two.init}).status());
  ExpectTensorEqual(Asked(third.get(), two.ids, two.words, {"d"}), Longs({2}));
}

TEST(TablesOnACluster, OnAParameterServerAreSavedAndRestored) {
  TwoServers servers;
  const std::string directory =
      JoinPath(::testing::TempDir(), absl::StrCat("cluster_tables_", RandomHexName()));
  ASSERT_OK(kFiles->RecursivelyCreateDirectory(directory));
  const Model model(ReplicaDeviceSetter(servers.Config("worker")), Strings({"a", "b"}));
  ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(model.root));
  ASSERT_OK_AND_ASSIGN(const auto session, servers.NewSession(model.root));
  ASSERT_OK(session->Run({}, {}, {model.init}).status());
  ASSERT_OK(session->Run({{model.words, Strings({"a", "b"})}}, {}, {model.add}).status());
  ASSERT_OK_AND_ASSIGN(const std::string path, saver->Save(session.get(), directory + "/model", 1));
  ASSERT_OK(session->Run({{model.words, Strings({"x"})}}, {}, {model.add}).status());
  ASSERT_OK(saver->Restore(session.get(), path));
  ExpectTensorEqual(Asked(session.get(), model.count, model.words, {"b", "a", "x"}),
                    Longs({1, 0, 0}));
  ASSERT_OK(kFiles->RecursivelyDelete(directory));
}

}  // namespace
}  // namespace millrace
