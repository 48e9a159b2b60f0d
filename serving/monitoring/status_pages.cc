// SPDX-License-Identifier: Apache-2.0
#include "serving/monitoring/status_pages.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/utf8.h"
#include "nlohmann/json.hpp"
#include "serving/cut_text.h"
#include "serving/version_state.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxErrorBytes = 1024;  // in JSON
constexpr size_t kMaxShownName = 80;     // in HTML, before it is escaped
constexpr size_t kMaxLinkedName = 200;
constexpr size_t kMaxShownError = 120;  // the same
constexpr size_t kMaxTailBytes = 100;   // what ends a page
constexpr char kEnd[] = "</body></html>\n";

std::string Head(absl::string_view title) {
  return absl::StrCat(
      "<!DOCTYPE html>\n<html><head><meta charset=\"utf-8\"><title>", title,
      "</title><style>td,th{text-align:left;padding:0 1em 0 0}</style></head><body>\n<h1>", title,
      "</h1>\n");
}

std::string Shown(absl::string_view text, size_t most) { return HtmlEscaped(CutText(text, most)); }

// As many rows as there is room for; `close` ends their list.
std::string WithRows(std::string page, const std::vector<std::string>& rows,
                     absl::string_view close) {
  size_t n = 0;
  while (n < rows.size() && page.size() + rows[n].size() + kMaxTailBytes <= kMaxHtmlBytes) {
    page.append(rows[n++]);
  }
  absl::StrAppend(&page, close);
  if (n < rows.size()) absl::StrAppend(&page, "<p>and ", rows.size() - n, " more</p>\n");
  return page + kEnd;
}

Json VersionJson(const ModelStatus& model, const VersionStatus& version,
                 const ServerStatus& status) {
  Json json;
  json["version"] = version.version;
  json["state"] = std::string(VersionStateName(version.state));
  json["bytes"] = version.num_bytes;
  json["running"] = status.running_of ? status.running_of(model.name, version.version) : 0;
  if (!version.status.ok()) {
    json["code"] = absl::StatusCodeToString(version.status.code());
    json["error"] = CutText(version.status.message(), kMaxErrorBytes);
  }
  return json;
}

Json ModelJson(const ModelStatus& model, const ServerStatus& status) {
  Json json;
  json["name"] = model.name;
  json["base_path"] = model.base_path;
  json["listed"] = model.is_listed;
  if (!model.source.ok()) json["error"] = CutText(model.source.message(), kMaxErrorBytes);
  json["labels"] = Json::object();
  for (const auto& [label, version] : model.labels) json["labels"][label] = version;
  json["versions"] = Json::array();
  for (const VersionStatus& version : model.versions) {
    json["versions"].push_back(VersionJson(model, version, status));
  }
  json["forgotten_versions"] = model.num_forgotten;
  return json;
}

}  // namespace

std::string StatusJson(const ServerStatus& status) {
  Json json;
  json["build"] = status.build;
  json["uptime_seconds"] = absl::ToDoubleSeconds(status.uptime);
  json["requests"] = {{"running", status.num_running}, {"waiting", status.num_waiting}};
  json["bytes"] = {{"tensors", status.tensor_bytes}, {"resident", status.resident_bytes}};
  json["models"] = Json::array();
  for (const ModelStatus& model : status.models) json["models"].push_back(ModelJson(model, status));
  // What is no UTF-8 is replaced.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ModelHtml(const ModelStatus& model, const ServerStatus& status) {
  std::string page = Head(Shown(model.name, kMaxShownName));
  if (!model.is_listed) absl::StrAppend(&page, "<p>No longer served.</p>\n");
  if (!model.source.ok()) {
    absl::StrAppend(&page, "<p>", Shown(model.source.message(), kMaxShownError), "</p>\n");
  }
  absl::StrAppend(&page,
                  "<table>\n<tr><th>version</th><th>state</th><th>labels</th><th>bytes</th>"
                  "<th>running</th><th>error</th></tr>\n");
  std::vector<std::string> rows;
  for (const VersionStatus& version : model.versions) {
    std::string labels;
    for (const auto& [label, number] : model.labels) {
      if (number != version.version) continue;
      absl::StrAppend(&labels, labels.empty() ? "" : ", ", label);
    }
    rows.push_back(absl::StrCat(
        "<tr><td>", version.version, "</td><td>", VersionStateName(version.state), "</td><td>",
        Shown(labels, kMaxShownName), "</td><td>", version.num_bytes, "</td><td>",
        status.running_of ? status.running_of(model.name, version.version) : 0, "</td><td>",
        Shown(version.status.message(), kMaxShownError), "</td></tr>\n"));
  }
  return WithRows(std::move(page), rows, "</table>\n");
}

std::string ModelsHtml(const ServerStatus& status) {
  std::vector<std::string> rows;
  for (const ModelStatus& model : status.models) {
    if (!model.is_listed) continue;
    const auto num_available =
        std::count_if(model.versions.begin(), model.versions.end(),
                      [](const VersionStatus& v) { return v.state == VersionState::kAvailable; });
    // A link of a long name would take the room of all others.
    if (model.name.size() > kMaxLinkedName) {
      rows.push_back(absl::StrCat("<li>", Shown(model.name, kMaxShownName), "</li>\n"));
      continue;
    }
    rows.push_back(absl::StrCat("<li><a href=\"/millrace/models/", PathEscaped(model.name), "\">",
                                Shown(model.name, kMaxShownName), "</a> ", num_available,
                                " available</li>\n"));
  }
  return WithRows(Head("Models") + "<ul>\n", rows, "</ul>\n");
}

std::string HtmlEscaped(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t n = Utf8Length(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (n == 0 || (byte < ' ' && byte != '\n' && byte != '\t') || byte == 0x7f) {
      out.append("\xef\xbf\xbd");  // U+FFFD
    } else if (byte == '&') {
      out.append("&amp;");
    } else if (byte == '<') {
      out.append("&lt;");
    } else if (byte == '>') {
      out.append("&gt;");
    } else if (byte == '"') {
      out.append("&quot;");
    } else if (byte == '\'') {
      out.append("&#39;");
    } else {
      out.append(text.data(), n);
    }
    text.remove_prefix(std::max(n, size_t{1}));
  }
  return out;
}

std::string PathEscaped(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
        absl::string_view("-_.~").find(c) != absl::string_view::npos) {
      out.push_back(c);
    } else {
      absl::StrAppend(&out, "%", absl::AsciiStrToUpper(absl::BytesToHexString({&c, 1})));
    }
  }
  return out;
}

}  // namespace millrace
