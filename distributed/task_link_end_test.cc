// SPDX-License-Identifier: Apache-2.0
#include "distributed/task_link_end.h"

#include <memory>
#include <thread>
#include <utility>

#include "core/io_pool.h"
#include "core/notification.h"
#include "distributed/worker/worker.h"
#include "gtest/gtest.h"

// covers: clusters: a server whose last owner is a link ends on a thread that may wait, not on one
//   of the network

namespace millrace {
namespace {

TEST(TaskLinkEndTest, TheOwnerOfAWorkerIsLetGoOnThePoolWithTheLastCopy) {
  IoPool pool(1);
  std::thread::id gone_on;
  Notification gone;
  std::shared_ptr<int> owner(new int(0), [&](int* owned) {
    delete owned;
    gone_on = std::this_thread::get_id();
    gone.Notify();
  });
  std::shared_ptr<Worker> first =
      LetGoOn(&pool, std::shared_ptr<Worker>(std::move(owner), static_cast<Worker*>(nullptr)));
  std::shared_ptr<Worker> last = first;
  first.reset();
  EXPECT_FALSE(gone.HasBeenNotified());
  last.reset();
  gone.Wait();
  EXPECT_NE(gone_on, std::this_thread::get_id());
}

}  // namespace
}  // namespace millrace
