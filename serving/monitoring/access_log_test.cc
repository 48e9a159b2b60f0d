// SPDX-License-Identifier: Apache-2.0
#include "serving/monitoring/access_log.h"

#include <string>

#include "absl/time/time.h"
#include "core/status.h"
#include "gtest/gtest.h"

// covers: serving: a line of the access log has what is known of a request, its names escaped

namespace millrace {
namespace {

TEST(AccessLogTest, LinesAreEscaped) {
  RequestRecord record;
  record.api = RequestApi::kRegress;
  record.origin = {RequestEntrypoint::kRest, "127.0.0.1:80", 12};
  record.model = "a\"\nb";
  record.latency = absl::Microseconds(345);
  record.status = absl::NotFoundError("x");
  EXPECT_EQ(AccessLine(record),
            "request REST Regress model=\"a\\\"\\nb\" version=- signature=\"\" status=NOT_FOUND "
            "latency_us=345 in=12 out=- client=\"127.0.0.1:80\"");
  const std::string name(300, 'n');
  record = {};
  record.model = name;
  record.bytes_out = 7;
  EXPECT_EQ(AccessLine(record), "request in_process Predict model=\"" + std::string(200, 'n') +
                                    "...TRUNCATED\" version=- signature=\"\" status=OK "
                                    "latency_us=0 in=- out=7 client=-");
}

}  // namespace
}  // namespace millrace
