// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/run_times.h"

#include "distributed/transport/transport.pb.h"
#include "google/protobuf/unknown_field_set.h"

namespace millrace {

namespace {

void Set(int number, int64_t ns, google::protobuf::Message* response) {
  auto* const fields = response->GetReflection()->MutableUnknownFields(response);
  fields->DeleteByNumber(number);
  fields->AddVarint(number, static_cast<uint64_t>(ns));
}

}  // namespace

bool IsTraceTime(int64_t ns) { return ns > 0 && ns < INT64_MAX / 2; }

void AddWorkerTimes(int64_t begun_ns, int64_t ended_ns, google::protobuf::Message* response) {
  Set(wire::RunTimes::kBegunNsFieldNumber, begun_ns, response);
  Set(wire::RunTimes::kEndedNsFieldNumber, ended_ns, response);
}

// What the worker says of our clock does not count.
void AddCallerTimes(int64_t asked_ns, int64_t answered_ns, google::protobuf::Message* response) {
  Set(wire::RunTimes::kAskedNsFieldNumber, asked_ns, response);
  Set(wire::RunTimes::kAnsweredNsFieldNumber, answered_ns, response);
}

std::optional<ClockExchange> ClockExchangeOf(const google::protobuf::Message& response) {
  ClockExchange exchange;
  const auto& fields = response.GetReflection()->GetUnknownFields(response);
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto& field = fields.field(i);
    if (field.type() != google::protobuf::UnknownField::TYPE_VARINT) continue;
    const auto ns = static_cast<int64_t>(field.varint());
    switch (field.number()) {
      case wire::RunTimes::kBegunNsFieldNumber:
        exchange.begun_ns = ns;
        break;
      case wire::RunTimes::kEndedNsFieldNumber:
        exchange.ended_ns = ns;
        break;
      case wire::RunTimes::kAskedNsFieldNumber:
        exchange.asked_ns = ns;
        break;
      case wire::RunTimes::kAnsweredNsFieldNumber:
        exchange.answered_ns = ns;
        break;
      default:
        break;
    }
  }
  for (const int64_t ns :
       {exchange.asked_ns, exchange.begun_ns, exchange.ended_ns, exchange.answered_ns}) {
    if (!IsTraceTime(ns)) return std::nullopt;
  }
  const int64_t there_and_back =
      (exchange.answered_ns - exchange.asked_ns) - (exchange.ended_ns - exchange.begun_ns);
  if (exchange.ended_ns < exchange.begun_ns || there_and_back < 0) return std::nullopt;
  return exchange;
}

}  // namespace millrace
