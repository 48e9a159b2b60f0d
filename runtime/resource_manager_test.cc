// SPDX-License-Identifier: Apache-2.0
#include "runtime/resource_manager.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/holds_for_sessions.h"

namespace millrace {
namespace {

class Counter : public Resource {
 public:
  static constexpr const char* kTypeName = "Counter";
  explicit Counter(int v) : value(v) {}
  std::string DebugString() const override { return absl::StrCat("Counter ", value); }
  const int value;
};

class Lamp : public Resource {
 public:
  static constexpr const char* kTypeName = "Lamp";
  std::string DebugString() const override { return "Lamp"; }
};

class Locks : public Resource, public HoldsForSessions {
 public:
  static constexpr const char* kTypeName = "Locks";
  std::string DebugString() const override { return "Locks"; }
  void SessionEnded(absl::string_view session_handle) override {
    ended.emplace_back(session_handle);
  }
  std::vector<std::string> ended;
};

// covers: clusters: resources that hold state for a session are notified of its end
TEST(ResourceManagerTest, ThoseThatHoldSomethingForSessionsAreToldInAllContainers) {
  ResourceManager manager("/device:CPU:0");
  const auto a = std::make_shared<Locks>(), b = std::make_shared<Locks>();
  ASSERT_OK(manager.Create<Locks>("", "a", a));
  ASSERT_OK(manager.Create<Locks>("box", "b", b));
  ASSERT_OK(manager.Create<Lamp>("", "a", std::make_shared<Lamp>()));
  manager.TellSessionEnded("1");
  EXPECT_EQ(a->ended, std::vector<std::string>{"1"});
  ASSERT_OK(manager.Delete<Locks>("", "a"));
  manager.TellSessionEnded("2");
  EXPECT_EQ(a->ended, std::vector<std::string>{"1"});
  EXPECT_EQ(b->ended, (std::vector<std::string>{"1", "2"}));
}

TEST(ResourceManagerTest, SameNameInOtherContainerOrOfOtherKindIsAnotherResource) {
  ResourceManager manager("/device:CPU:0");
  ASSERT_OK(manager.Create<Counter>("", "a", std::make_shared<Counter>(1)));
  ASSERT_OK(manager.Create<Counter>("box", "a", std::make_shared<Counter>(2)));
  ASSERT_OK(manager.Create<Lamp>("", "a", std::make_shared<Lamp>()));
  ASSERT_OK_AND_ASSIGN(const auto one, manager.Lookup<Counter>("localhost", "a"));
  ASSERT_OK_AND_ASSIGN(const auto two, manager.Lookup<Counter>("box", "a"));
  EXPECT_EQ(one->value, 1);
  EXPECT_EQ(two->value, 2);
  EXPECT_EQ(manager.DebugStrings(),
            (std::vector<std::string>{"box/a/Counter: Counter 2", "localhost/a/Counter: Counter 1",
                                      "localhost/a/Lamp: Lamp"}));
}

TEST(ResourceManagerTest, ErrorsNameContainerNameAndType) {
  ResourceManager manager("/device:CPU:0");
  EXPECT_STATUS(manager.Lookup<Counter>("", "a"), absl::StatusCode::kNotFound,
                "Resource localhost/a/Counter does not exist.");
  EXPECT_STATUS(manager.Delete<Counter>("box", "a"), absl::StatusCode::kNotFound,
                "Resource box/a/Counter does not exist.");
  ASSERT_OK(manager.Create<Counter>("", "a", std::make_shared<Counter>(1)));
  EXPECT_STATUS(manager.Create<Counter>("", "a", std::make_shared<Counter>(2)),
                absl::StatusCode::kAlreadyExists, "Resource localhost/a/Counter already exists.");
}

TEST(ResourceManagerTest, LookupOrCreateMakesOneForAllThreads) {
  ResourceManager manager("/device:CPU:0");
  int made = 0;
  std::vector<std::shared_ptr<Counter>> got(8);
  std::vector<std::thread> threads;
  for (auto& slot : got) {
    threads.emplace_back([&manager, &made, &slot] {
      slot = *manager.LookupOrCreate<Counter>("", "a", [&]() -> StatusOr<std::shared_ptr<Counter>> {
        return std::make_shared<Counter>(++made);
      });
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(made, 1);
  for (const auto& resource : got) EXPECT_EQ(resource, got[0]);
}

TEST(ResourceManagerTest, FailedCreateLeavesNothing) {
  ResourceManager manager("/device:CPU:0");
  const auto fail = []() -> StatusOr<std::shared_ptr<Counter>> {
    return absl::ResourceExhaustedError("full");
  };
  EXPECT_STATUS(manager.LookupOrCreate<Counter>("", "a", fail),
                absl::StatusCode::kResourceExhausted, "full");
  EXPECT_TRUE(manager.DebugStrings().empty());
}

TEST(ResourceManagerTest, HandleFindsItsResourceWithAndWithoutPointer) {
  ResourceManager manager("/device:CPU:0");
  const auto counter = std::make_shared<Counter>(1);
  ASSERT_OK(manager.Create<Counter>("", "a", counter));
  ResourceHandle handle = manager.MakeHandle<Counter>("", "a", counter);
  EXPECT_EQ(handle.container, "localhost");
  EXPECT_EQ(*manager.Resolve<Counter>(handle), counter);
  handle.resource = nullptr;  // as it comes over the wire
  EXPECT_EQ(*manager.Resolve<Counter>(handle), counter);
}

TEST(ResourceManagerTest, HandleOfAnotherKindOrDeviceIsRefused) {
  ResourceManager manager("/device:CPU:0");
  ResourceManager other("/device:CPU:1");
  const auto counter = std::make_shared<Counter>(1);
  const ResourceHandle handle = manager.MakeHandle<Counter>("", "a", counter);
  EXPECT_STATUS(manager.Resolve<Lamp>(handle), absl::StatusCode::kInvalidArgument,
                "Resource 'a' must be a Lamp, got a handle of a Counter");
  EXPECT_STATUS(other.Resolve<Counter>(handle), absl::StatusCode::kInvalidArgument,
                "must be used on its device '/device:CPU:0', got '/device:CPU:1'");
  EXPECT_STATUS(other.DeleteHandle(handle), absl::StatusCode::kInvalidArgument, "its device");
}

TEST(ResourceManagerTest, AbandonedPointerInAHandleIsLookedUpAnew) {
  ResourceManager manager("/device:CPU:0");
  const auto old = std::make_shared<Counter>(1);
  ASSERT_OK(manager.Create<Counter>("", "a", old));
  const ResourceHandle handle = manager.MakeHandle<Counter>("", "a", old);
  ASSERT_OK(manager.DeleteHandle(handle));
  EXPECT_TRUE(old->abandoned());
  EXPECT_STATUS(manager.Resolve<Counter>(handle), absl::StatusCode::kNotFound, "localhost/a");
  const auto fresh = std::make_shared<Counter>(2);
  ASSERT_OK(manager.Create<Counter>("", "a", fresh));
  EXPECT_EQ(*manager.Resolve<Counter>(handle), fresh);
}

TEST(ResourceManagerTest, ClearContainerAbandonsOnlyWhatIsInIt) {
  ResourceManager manager("/device:CPU:0");
  const auto inside = std::make_shared<Counter>(1);
  const auto outside = std::make_shared<Counter>(2);
  ASSERT_OK(manager.Create<Counter>("box", "a", inside));
  ASSERT_OK(manager.Create<Counter>("", "a", outside));
  manager.ClearContainer("box");
  manager.ClearContainer("no such box");
  EXPECT_TRUE(inside->abandoned());
  EXPECT_FALSE(outside->abandoned());
  EXPECT_STATUS(manager.Lookup<Counter>("box", "a"), absl::StatusCode::kNotFound, "box/a");
  manager.ClearContainer("");  // the default container
  EXPECT_TRUE(outside->abandoned());
}

TEST(ResourceManagerTest, ManagerThatGoesAbandonsItsResources) {
  const auto counter = std::make_shared<Counter>(1);
  {
    ResourceManager manager("/device:CPU:0");
    ASSERT_OK(manager.Create<Counter>("", "a", counter));
  }
  EXPECT_TRUE(counter->abandoned());
}

}  // namespace
}  // namespace millrace
