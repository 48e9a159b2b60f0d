// SPDX-License-Identifier: Apache-2.0
#include "net/http/http_server.h"

#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/status.h"
#include "gtest/gtest.h"
#include "net/http/growing_bytes.h"
#include "net/http/gzip.h"
#include "net/http/http_listener.h"
#include "net/http/testing/raw_http_client.h"
#include "net/testing/test_certificates.h"

// covers: serving: HTTP requests come whole, and each is answered once, at once or from another
//   thread; what is malformed, too large, too slow or too much has its code and reaches no handler
// covers: serving: a client that goes away is noticed while its request runs; idle connections,
// slow
//   senders and slow readers hold no thread of the HTTP server
// covers: serving: an HTTP server that stops lets running requests end; for a while it answers what
//   comes on idle connections, then it closes them without a reset

namespace millrace {
namespace {

// Waits, a minute at most, for something that a test cannot be told of.
template <typename Condition>
bool Eventually(Condition condition) {
  const absl::Time end = absl::Now() + absl::Minutes(1);
  while (!condition()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

std::unique_ptr<HttpServer> Started(HttpHandler handler, HttpServerOptions options = {}) {
  if (options.num_threads == 0) options.num_threads = 2;
  StatusOr<std::unique_ptr<HttpServer>> server =
      HttpServer::Start(std::move(options), std::move(handler));
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? *std::move(server) : nullptr;
}

std::string Target(const HttpRequest& request) {
  return absl::StrCat(request.path(), request.query().empty() ? "" : "?", request.query());
}

// "POST /path?query body".
void Echo(std::unique_ptr<HttpRequest> request) {
  request->Answer(200, {{"Content-Type", "text/plain"}},
                  absl::StrCat(request->method(), " ", Target(*request), " ", request->body()));
}

std::string Get(absl::string_view target, absl::string_view headers = "") {
  return HttpRequestText("GET", target, "", headers);
}
std::string Post(absl::string_view target, absl::string_view body, absl::string_view headers = "") {
  return HttpRequestText("POST", target, body, headers);
}

// Requests that a handler keeps until the test takes them.
class Kept {
 public:
  HttpHandler handler() {
    return [this](std::unique_ptr<HttpRequest> request) {
      MutexLock lock(&mu_);
      requests_.push_back(std::move(request));
      changed_.SignalAll();
    };
  }
  std::unique_ptr<HttpRequest> Next() {
    MutexLock lock(&mu_);
    while (requests_.empty()) {
      if (changed_.WaitWithTimeout(&mu_, absl::Minutes(1)) && requests_.empty()) return nullptr;
    }
    std::unique_ptr<HttpRequest> first = std::move(requests_.front());
    requests_.erase(requests_.begin());
    return first;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::unique_ptr<HttpRequest>> requests_ ABSL_GUARDED_BY(mu_);
};

TEST(HttpServerTest, TheHandlerSeesWhatWasSentAndTheClientWhatWasAnswered) {
  std::string seen, many;
  const auto server = Started([&](std::unique_ptr<HttpRequest> request) {
    seen = absl::StrCat(request->method(), " ", request->path(), " ", request->query(), " ",
                        request->header("x-ONE"), " ", request->header("absent"), " ",
                        request->body());
    for (const auto& [name, value] : request->headers()) {
      if (absl::EqualsIgnoreCase(name, "x-two")) absl::StrAppend(&many, value, ";");
    }
    EXPECT_TRUE(absl::StartsWith(request->peer(), "127.0.0.1:")) << request->peer();
    request->Answer(201, {{"X-Reply", "yes"}, {"Content-Length", "7"}}, "made");
    // What the request holds stays until it goes.
    EXPECT_EQ(request->body(), "the body");
  });
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->addresses(),
            std::vector<std::string>{absl::StrCat("127.0.0.1:", server->port())});
  RawHttpClient client(server->port());
  const RawHttpReply reply = client.Ask(Post("/v1/models/a%20b:predict?x=1&y=%2F", "the body",
                                             "X-One: 1\r\nX-Two: a\r\nx-two: b\r\n"));
  EXPECT_EQ(seen, "POST /v1/models/a%20b:predict x=1&y=%2F 1  the body");
  EXPECT_EQ(many, "a;b;");
  EXPECT_EQ(reply.status, 201);
  EXPECT_EQ(reply.header("x-reply"), "yes");
  EXPECT_EQ(reply.header("content-length"), "4");
  EXPECT_EQ(reply.body, "made");
}

TEST(HttpServerTest, AConnectionServesManyRequestsOneAfterTheOther) {
  const auto server = Started(Echo);
  RawHttpClient client(server->port());
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(client.Ask(Post(absl::StrCat("/", i), absl::StrCat("body ", i))).body,
              absl::StrCat("POST /", i, " body ", i));
  }
  EXPECT_EQ(server->num_connections(), 1);
}

TEST(HttpServerTest, PipelinedRequestsAreAnsweredInTheirOrder) {
  std::vector<std::thread> threads;
  const auto server = Started([&](std::unique_ptr<HttpRequest> request) {
    if (request->path() != "/later") return Echo(std::move(request));
    threads.emplace_back([request = std::shared_ptr<HttpRequest>(std::move(request))] {
      request->Answer(200, {}, "later");
    });
  });
  RawHttpClient client(server->port());
  client.Send(
      absl::StrCat(Get("/1"), Post("/later", "x"), Post("/3", "abc"), Get("/later"), Get("/5")));
  for (const char* const body : {"GET /1 ", "later", "POST /3 abc", "later", "GET /5 "}) {
    EXPECT_EQ(client.ReadReply().body, body);
  }
  server->Stop(absl::ZeroDuration());
  for (std::thread& thread : threads) thread.join();
}

TEST(HttpServerTest, AnyMethodReachesTheHandlerAndHeadGetsNoBody) {
  const auto server = Started(Echo);
  RawHttpClient client(server->port());
  for (const char* const method : {"OPTIONS", "PUT", "DELETE", "PATCH", "SURPRISE"}) {
    EXPECT_EQ(client.Ask(HttpRequestText(method, "/x")).body, absl::StrCat(method, " /x "));
  }
  client.Send(HttpRequestText("HEAD", "/x"));
  const RawHttpReply reply = client.ReadReply(/*has_body=*/false);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("content-length"), absl::StrCat(std::string("HEAD /x ").size()));
  EXPECT_EQ(client.Ask(Get("/after")).body, "GET /after ");
}

TEST(HttpServerTest, TargetsOfProxiesAndOfServersAreTaken) {
  const auto server = Started(Echo);
  RawHttpClient client(server->port());
  EXPECT_EQ(client.Ask(Get("http://host:80/x?y")).body, "GET /x?y ");
  EXPECT_EQ(client.Ask(Get("HTTP://host")).body, "GET / ");
  EXPECT_EQ(client.Ask(HttpRequestText("OPTIONS", "*")).body, "OPTIONS * ");
  EXPECT_EQ(client.Ask("\r\n" + Get("/after/an/empty/line")).body, "GET /after/an/empty/line ");
}

TEST(HttpServerTest, OldClientsAreServed) {
  const auto server = Started(Echo);
  RawHttpClient once(server->port());
  EXPECT_EQ(once.Ask("GET /x HTTP/1.0\r\n\r\n").body, "GET /x ");
  EXPECT_TRUE(once.IsAtEnd());
  RawHttpClient stays(server->port());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(stays.Ask("GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").body, "GET /x ");
  }
}

TEST(HttpServerTest, AClientThatAsksFirstIsToldToGoOn) {
  const auto server = Started(Echo, {.max_body_bytes = 100});
  RawHttpClient client(server->port());
  client.Send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  char byte;
  EXPECT_EQ(recv(client.fd(), &byte, 1, MSG_PEEK), 1) << "the 100 comes before the body";
  client.Send("abc");
  EXPECT_EQ(client.ReadReply().body, "POST /x abc");
  EXPECT_EQ(client.num_interim(), 1);

  // Too large: no 100.
  client.Send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadReply().status, 413);
  EXPECT_EQ(client.num_interim(), 1);
  EXPECT_TRUE(client.IsAtEnd());
}

constexpr char kChunked[] = "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

TEST(HttpServerTest, ChunksAreOneBody) {
  const auto server = Started(Echo);
  RawHttpClient client(server->port());
  client.Send(absl::StrCat(kChunked, "3\r\nabc\r\nA;name=x\r\n0123456789\r\n0\r\n\r\n", Get("/2")));
  EXPECT_EQ(client.ReadReply().body, "POST /x abc0123456789");
  EXPECT_EQ(client.ReadReply().body, "GET /2 ");
}

TEST(HttpServerTest, LargeBodiesComeAndGoWhole) {
  const auto server = Started(Echo);
  std::string body(5'000'000, '\0');
  for (size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>(i * 7 + i / 251);
  RawHttpClient client(server->port());
  std::string chunked = kChunked;
  constexpr size_t kChunk = 99'999;
  for (size_t at = 0; at < body.size(); at += kChunk) {
    const absl::string_view piece = absl::string_view(body).substr(at, kChunk);
    absl::StrAppend(&chunked, absl::Hex(piece.size()), "\r\n", piece, "\r\n");
  }
  absl::StrAppend(&chunked, "0\r\n\r\n");
  for (const std::string& request : {Post("/x", body), chunked}) {
    EXPECT_TRUE(client.Ask(request).body == absl::StrCat("POST /x ", body));
  }
}

// What the library refuses by itself (400, 413, 414, 431, 505) and what this server does.
TEST(HttpServerTest, WhatIsNoRequestHasItsCodeAndEndsItsConnection) {
  std::atomic<int> num_calls{0};
  const auto server = Started(
      [&](std::unique_ptr<HttpRequest> request) {
        ++num_calls;
        request->Answer(200, {}, "");
      },
      {.max_header_bytes = 8 << 10});
  std::string many_headers;
  for (int i = 0; i < 5'000; ++i) absl::StrAppend(&many_headers, "a", i, ": b\r\n");
  const std::string post = "POST /x HTTP/1.1\r\nHost: a\r\n";
  const struct {
    const char* what;
    std::string bytes;
    int status;
  } cases[] = {
      {"one word", "GET\r\n\r\n", 0},
      {"space in the target", "GET /x y HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"space in a name", "GET /x HTTP/1.1\r\nHost: a\r\nX : 1\r\n\r\n", 400},
      {"no colon", "GET /x HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", 400},
      {"no version", "GET /x\r\n\r\n", 400},
      {"other version", "GET /x HTTP/2.0\r\nHost: a\r\n\r\n", 505},
      {"no Host", "GET /x HTTP/1.1\r\n\r\n", 400},
      {"two Hosts", "GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"two lengths", post + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
      {"length and chunks",
       post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 400},
      {"two codings",
       post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"other coding", post + "Transfer-Encoding: gzip\r\n\r\nabc", 501},
      {"chunks of HTTP/1.0",
       "POST /x HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"negative length", post + "Content-Length: -1\r\n\r\n", 400},
      {"length is a word", post + "Content-Length: three\r\n\r\n", 400},
      {"1 TB", post + "Content-Length: 1000000000000\r\n\r\n", 413},
      {"length of 70 bits", post + "Content-Length: 999999999999999999999\r\n\r\n", 413},
      {"wrong chunk", absl::StrCat(kChunked, "xyz\r\nabc\r\n"), 400},
      {"chunk of 80 bits", absl::StrCat(kChunked, "fffffffffffffffffffff\r\nabc"), 413},
      {"long header", absl::StrCat("GET /x HTTP/1.1\r\nHost: a\r\nX: ", std::string(50'000, 'y')),
       431},
      {"header just too long",
       Get("/x", absl::StrCat("X: ", std::string((8 << 10) + 100, 'y'), "\r\n")), 431},
      {"many headers", absl::StrCat("GET /x HTTP/1.1\r\nHost: a\r\n", many_headers), 431},
      {"long target", absl::StrCat("GET /", std::string(50'000, 'y')), 414},
  };
  for (const auto& c : cases) {
    RawHttpClient client(server->port());
    client.Send(c.bytes);  // may not be taken to its end
    EXPECT_EQ(client.ReadReply().status, c.status) << c.what;
    EXPECT_TRUE(Eventually([&] { return server->num_connections() == 0; })) << c.what;
  }
  EXPECT_EQ(num_calls, 0);
  EXPECT_EQ(RawHttpClient(server->port()).Ask(Get("/x")).status, 200);
}

TEST(HttpServerTest, BytesThatAreNoTextDoNoHarm) {
  const auto server = Started(Echo, {.header_time = absl::Milliseconds(200)});
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  for (const std::string& start : {std::string("\x16\x03\x01\x02\x00\x01", 6), std::string(9, '\0'),
                                   std::string("GET /\xff\xfe\x01 HTTP/1.1\r\nHost: "),
                                   std::string("\r\n\r\n\r\n"), std::string("\n")}) {
    RawHttpClient client(server->port());
    client.Send(start + bytes + bytes);
    client.CloseWriting();
    (void)client.ReadReply();
  }
  EXPECT_EQ(RawHttpClient(server->port()).Ask(Get("/x")).body, "GET /x ");
}

TEST(HttpServerTest, BodiesUpToTheLimitAreTaken) {
  const auto server = Started(Echo, {.max_body_bytes = 100'000});
  RawHttpClient client(server->port());
  const std::string most(100'000, 'x');
  EXPECT_EQ(client.Ask(Post("/x", most)).body.size(), most.size() + std::string("POST /x ").size());

  // At once: the body has not been sent.
  client.Send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\n\r\n");
  const RawHttpReply reply = client.ReadReply();
  EXPECT_EQ(reply.status, 413);
  EXPECT_EQ(reply.header("connection"), "close");
  EXPECT_TRUE(client.IsAtEnd());

  // Sent whole: the reply is not lost with the bytes that nobody reads.
  RawHttpClient whole(server->port());
  whole.Send(Post("/x", std::string(1'000'000, 'x')));
  EXPECT_EQ(whole.ReadReply().status, 413);
}

TEST(HttpServerTest, ChunksWithoutEndAreCutAtTheLimit) {
  const auto server = Started(Echo, {.max_body_bytes = 100'000});
  RawHttpClient client(server->port());
  std::string chunk = "10000\r\n";  // hexadecimal
  chunk.append(0x10000, 'x').append("\r\n");
  client.Send(kChunked);
  // Many times the limit: the server stops to read, and the client cannot write any more.
  for (int i = 0; i < 1'000 && client.Send(chunk); ++i) {
    char byte;
    if (recv(client.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1) break;  // the reply is here
  }
  EXPECT_EQ(client.ReadReply().status, 413);
}

TEST(HttpServerTest, AWrongContentLengthHarmsItsConnectionAlone) {
  std::atomic<int> num_calls{0};
  const auto server = Started(
      [&](std::unique_ptr<HttpRequest> request) {
        ++num_calls;
        Echo(std::move(request));
      },
      {.body_time =
           absl::Seconds(10)});  // a close that came before the library looked is seen then
  RawHttpClient too_long(server->port());
  too_long.Send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
  too_long.Close();
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 0; }));
  EXPECT_EQ(num_calls, 0) << "a request that is not whole is none";

  RawHttpClient too_short(server->port());
  too_short.Send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nabc d\r\n\r\n");
  EXPECT_EQ(too_short.ReadReply().body, "POST /x ab");
  EXPECT_EQ(too_short.ReadReply().status, 400) << "the rest is no request";
}

// The first request has 60 of 100 KB; a second one fits after it has gone.
TEST(HttpServerTest, AllBodiesTogetherAreBounded) {
  Kept kept;
  const auto server = Started(kept.handler(), {.max_bytes_of_bodies = 100'000});
  const std::string request = Post("/x", std::string(60'000, 'x'));
  RawHttpClient first(server->port()), second(server->port()), third(server->port());
  first.Send(request);
  std::unique_ptr<HttpRequest> held = kept.Next();
  ASSERT_NE(held, nullptr);
  second.Send(request);
  const RawHttpReply reply = second.ReadReply();
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.header("retry-after"), "1");
  EXPECT_TRUE(second.IsAtEnd());

  held->Answer(200, {}, "done");
  EXPECT_EQ(first.ReadReply().status, 200);
  held.reset();
  third.Send(request);
  held = kept.Next();
  ASSERT_NE(held, nullptr);
  held->Answer(200, {}, "done");
  EXPECT_EQ(third.ReadReply().status, 200);
}

// A reply of 16 MB is more than sockets hold: what its client does not read stays with the server.
TEST(HttpServerTest, RepliesThatNobodyTakesAreBounded) {
  constexpr size_t kReply = size_t{16} << 20;
  const auto server = Started(
      [](std::unique_ptr<HttpRequest> request) {
        request->Answer(200, {}, request->path() == "/large" ? std::string(kReply, 'x') : "small");
      },
      {.max_bytes_of_replies = kReply + 1});
  RawHttpClient slow(server->port()), refused(server->port()), small(server->port());
  slow.Send(Get("/large"));
  ASSERT_EQ(slow.ReadReply(false).status, 200);  // its head alone
  const RawHttpReply reply = refused.Ask(Get("/large"));
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.header("retry-after"), "1");
  EXPECT_EQ(refused.Ask(Get("/small")).status, 200) << "the connection goes on";
  EXPECT_EQ(small.Ask(Get("/small")).body, "small");
  slow.Close();
  EXPECT_TRUE(Eventually([&] { return refused.Ask(Get("/large")).body.size() == kReply; }));
}

TEST(HttpServerTest, SlowSendersAreToldAndCut) {
  const auto server =
      Started(Echo, {.header_time = absl::Milliseconds(100), .body_time = absl::Milliseconds(100)});
  for (const char* const begin : {"GET /x HTTP/1.1\r\nHost: a\r\n",
                                  "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab"}) {
    RawHttpClient client(server->port());
    client.Send(begin);
    EXPECT_EQ(client.ReadReply().status, 408) << begin;
    EXPECT_TRUE(client.IsAtEnd()) << begin;
  }
}

TEST(HttpServerTest, IdleConnectionsEnd) {
  const auto server = Started(Echo, {.idle_time = absl::Seconds(1)});
  RawHttpClient silent(server->port()), served(server->port()), begun(server->port());
  // Again, should this thread have been held up for longer.
  EXPECT_TRUE(Eventually([&] {
    served = RawHttpClient(server->port());
    return served.Ask(Get("/x")).status == 200;
  }));
  begun.Send("GE");
  EXPECT_TRUE(silent.IsAtEnd());
  EXPECT_TRUE(served.IsAtEnd());
  EXPECT_TRUE(begun.IsAtEnd());
}

TEST(HttpServerTest, GzipBodiesComePlain) {
  const auto server = Started(
      Echo, {.max_body_bytes = 2'000'000, .max_inflate_ratio = 50, .min_gzip_bytes = 1 << 30});
  RawHttpClient client(server->port());
  const StatusOr<std::string> packed = Gzip("plain");
  const StatusOr<std::string> bomb = Gzip(std::string(1'900'000, 'x'));
  const StatusOr<std::string> large = Gzip(std::string(2'000'001, 'x'));
  ASSERT_TRUE(packed.ok() && bomb.ok() && large.ok());
  const std::string gzip = "Content-Encoding: gzip\r\n";
  EXPECT_EQ(client.Ask(Post("/x", *packed, gzip)).body, "POST /x plain");
  EXPECT_EQ(client.Ask(Post("/x", *packed, "content-encoding: X-GZIP\r\n")).body, "POST /x plain");
  EXPECT_EQ(client.Ask(Post("/x", "plain", "Content-Encoding: identity\r\n")).body,
            "POST /x plain");
  EXPECT_EQ(client.Ask(Get("/x", gzip)).body, "GET /x ");
  EXPECT_EQ(client.Ask(Post("/x", packed->substr(0, packed->size() - 1), gzip)).status, 400);
  EXPECT_EQ(client.Ask(Post("/x", *packed + "more", gzip)).status, 400);
  EXPECT_EQ(client.Ask(Post("/x", "plain", gzip)).status, 400);
  EXPECT_EQ(client.Ask(Post("/x", *bomb, gzip)).status, 413);
  EXPECT_EQ(client.Ask(Post("/x", *large, gzip)).status, 413);
  EXPECT_EQ(client.Ask(Post("/x", *packed, "Content-Encoding: br\r\n")).status, 415);
  EXPECT_EQ(client.Ask(Post("/x", *packed, gzip)).body, "POST /x plain") << "the connection stays";
}

TEST(HttpServerTest, LargeGzipBodiesAreUnpackedByTheHandlerWhereItLikes) {
  const StatusOr<std::string> tiny = Gzip("plain");
  const StatusOr<std::string> bomb = Gzip(std::string(1'900'000, 'x'));
  ASSERT_TRUE(tiny.ok() && bomb.ok());
  const std::string letters = "abcdefghijklmnopqrstuvwxyz";
  const StatusOr<std::string> large = Gzip(letters);
  ASSERT_TRUE(large.ok() && large->size() > tiny->size());
  std::atomic<int> num_packed{0};
  const auto server = Started(
      [&](std::unique_ptr<HttpRequest> request) {
        if (!request->is_packed()) return Echo(std::move(request));
        ++num_packed;
        std::thread([request = std::move(request)]() mutable {
          if (!request->Unpack()) return;
          EXPECT_FALSE(request->is_packed());
          EXPECT_TRUE(request->Unpack()) << "nothing is left to do";
          Echo(std::move(request));
        }).detach();
      },
      {.max_body_bytes = 2'000'000,
       .max_inflate_ratio = 50,
       .max_gzip_bytes_on_loop = static_cast<int64_t>(tiny->size()),
       .min_gzip_bytes = 1 << 30});
  RawHttpClient client(server->port());
  const std::string gzip = "Content-Encoding: gzip\r\n";
  EXPECT_EQ(client.Ask(Post("/x", *tiny, gzip)).body, "POST /x plain");
  EXPECT_EQ(num_packed, 0);
  EXPECT_EQ(client.Ask(Post("/x", *large, gzip)).body, "POST /x " + letters);
  EXPECT_EQ(client.Ask(Post("/x", *large + "more", gzip)).status, 400);
  EXPECT_EQ(client.Ask(Post("/x", *bomb, gzip)).status, 413);
  EXPECT_EQ(num_packed, 3);
  EXPECT_EQ(client.Ask(Post("/x", *large, "Content-Encoding: br\r\n")).status, 415);
  EXPECT_EQ(num_packed, 3) << "that needs no unpacking";
}

TEST(HttpServerTest, RepliesAreGzippedForClientsThatAskWhenTheyAreLarge) {
  const std::string text(5'000, 'x');
  const auto server = Started(
      [&](std::unique_ptr<HttpRequest> request) {
        HttpHeaders headers;
        if (request->path() == "/coded") headers.emplace_back("content-encoding", "other");
        request->Answer(200, std::move(headers), request->path() == "/small" ? "small" : text);
      },
      {.min_gzip_bytes = 5'000});
  RawHttpClient client(server->port());
  const std::string accept = "Accept-Encoding: deflate, gzip;q=0.9\r\n";
  const RawHttpReply packed = client.Ask(Get("/large", accept));
  EXPECT_EQ(packed.header("content-encoding"), "gzip");
  EXPECT_EQ(packed.header("vary"), "Accept-Encoding");
  EXPECT_LT(packed.body.size(), text.size());
  const StatusOr<GrowingBytes> plain = Gunzip(packed.body, {});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_TRUE(plain->view() == absl::string_view(text));

  EXPECT_EQ(client.Ask(Get("/large")).body, text);
  EXPECT_EQ(client.Ask(Get("/large", "Accept-Encoding: gzip;q=0\r\n")).body, text);
  EXPECT_EQ(client.Ask(Get("/small", accept)).body, "small");
  EXPECT_EQ(client.Ask(Get("/coded", accept)).header("content-encoding"), "other");
}

TEST(HttpServerTest, ARequestIsAnsweredLaterFromAnyThread) {
  Kept kept;
  const auto server = Started(kept.handler(), {.num_threads = 1});
  RawHttpClient one(server->port()), two(server->port());
  one.Send(Post("/1", "a"));
  std::unique_ptr<HttpRequest> first = kept.Next();
  // The only thread of the server is free meanwhile.
  two.Send(Post("/2", "b"));
  std::unique_ptr<HttpRequest> second = kept.Next();
  ASSERT_TRUE(first != nullptr && second != nullptr);
  std::thread([&] { second->Answer(200, {}, Target(*second)); }).join();
  EXPECT_EQ(two.ReadReply().body, "/2");
  first->Answer(200, {}, Target(*first));
  first->Answer(500, {}, "not this one");
  EXPECT_EQ(one.ReadReply().body, "/1");
}

TEST(HttpServerTest, EachRequestIsAnsweredWhateverTheHandlerDoes) {
  const auto server = Started([](std::unique_ptr<HttpRequest> request) {
    if (request->path() == "/drop") return;
    if (request->path() == "/throw") throw std::runtime_error("of a handler");
    if (request->path() == "/header") return request->Answer(200, {{"X", "a\r\nY: b"}}, "x");
    if (request->path() == "/status") return request->Answer(99, {}, "x");
    if (request->path() == "/empty") return request->Answer(204, {}, "dropped");
    request->Answer(200, {}, "first");
    request->Answer(500, {}, "second");
  });
  RawHttpClient client(server->port());
  for (const char* const target : {"/drop", "/throw", "/header", "/status"}) {
    const RawHttpReply reply = client.Ask(Get(target));
    EXPECT_EQ(reply.status, 500) << target;
    EXPECT_TRUE(absl::StrContains(reply.body, "error")) << reply.body;
  }
  EXPECT_EQ(client.Ask(Get("/empty")).status, 204);
  EXPECT_EQ(client.Ask(Get("/twice")).body, "first");
}

TEST(HttpServerTest, AClientThatGoesAwayIsNoticedWhileItsRequestRuns) {
  Kept kept;
  const auto server = Started(kept.handler());
  RawHttpClient client(server->port());
  client.Send(Get("/x"));
  std::unique_ptr<HttpRequest> request = kept.Next();
  ASSERT_NE(request, nullptr);
  Notification gone;
  request->OnDisconnect([&] { gone.Notify(); });
  EXPECT_FALSE(gone.HasBeenNotified());
  client.Close();
  EXPECT_TRUE(gone.WaitFor(absl::Minutes(1)));
  // Told too late: at once.
  bool told = false;
  request->OnDisconnect([&] { told = true; });
  EXPECT_TRUE(told);
  request->Answer(200, {}, "nobody reads it");
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 0; }));
}

TEST(HttpServerTest, AHandlerThatHoldsItsThreadIsToldToo) {
  std::atomic<bool> told{false};
  const auto server = Started(
      [&](std::unique_ptr<HttpRequest> request) {
        Notification gone;
        request->OnDisconnect([&] { gone.Notify(); });
        told = gone.WaitFor(absl::Minutes(1));
        request->Answer(200, {}, "");
      },
      {.num_threads = 1});
  RawHttpClient client(server->port());
  client.Send(Get("/x"));
  client.Close();
  EXPECT_TRUE(Eventually([&] { return told.load(); }));
}

TEST(HttpServerTest, NobodyIsToldOfAnAnsweredRequest) {
  Kept kept;
  const auto server = Started(kept.handler());
  RawHttpClient client(server->port());
  client.Send(Get("/x"));
  const std::unique_ptr<HttpRequest> request = kept.Next();
  ASSERT_NE(request, nullptr);
  auto held = std::make_shared<int>();
  const std::weak_ptr<int> weak = held;
  std::atomic<bool> told{false};
  request->OnDisconnect([&, held = std::move(held)] { told = true; });
  request->Answer(200, {}, "");
  EXPECT_TRUE(weak.expired()) << "the callback goes with the answer";
  EXPECT_EQ(client.ReadReply().status, 200);
  request->OnDisconnect([&] { told = true; });
  client.Close();
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 0; }));
  EXPECT_FALSE(told);
}

TEST(HttpServerTest, AClientThatHasSaidAllStillGetsItsAnswer) {
  Kept kept;
  const auto server = Started(kept.handler());
  RawHttpClient client(server->port());
  client.Send(Post("/x", "abc"));
  client.CloseWriting();
  const std::unique_ptr<HttpRequest> request = kept.Next();
  ASSERT_NE(request, nullptr);
  Notification gone;
  request->OnDisconnect([&] { gone.Notify(); });
  EXPECT_TRUE(gone.WaitFor(absl::Minutes(1))) << "it may be gone: nobody can tell";
  request->Answer(200, {}, "answer");
  EXPECT_EQ(client.ReadReply().body, "answer");
}

// An end with bytes that nobody read is a reset. The default of SIGPIPE would end this program.
TEST(HttpServerTest, ClientsThatBreakOffRaiseNoSignal) {
  const std::string large(8 << 20, 'x');
  const auto server =
      Started([&](std::unique_ptr<HttpRequest> request) { request->Answer(200, {}, large); });
  for (int i = 0; i < 10; ++i) {
    RawHttpClient client(server->port());
    client.Send(Get("/x"));
    char byte;
    EXPECT_EQ(recv(client.fd(), &byte, 1, 0), 1);
    const linger reset = {1, 0};
    setsockopt(client.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    client.Close();
  }
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 0; }));
  EXPECT_EQ(RawHttpClient(server->port()).Ask(Get("/x")).body.size(), large.size());
}

TEST(HttpServerTest, TwoHundredConnectionsAtOnceGetTheirOwnAnswers) {
  Kept kept;
  const auto server = Started([&](std::unique_ptr<HttpRequest> request) {
    // Every other one is answered elsewhere.
    if (absl::EndsWith(request->path(), "odd")) return kept.handler()(std::move(request));
    Echo(std::move(request));
  });
  constexpr int kClients = 200, kRounds = 3;
  std::thread answerer([&] {
    for (int i = 0; i < kRounds * kClients / 2; ++i) {
      std::unique_ptr<HttpRequest> request = kept.Next();
      if (request == nullptr) return;
      Echo(std::move(request));
    }
  });
  std::vector<RawHttpClient> clients;
  for (int i = 0; i < kClients; ++i) clients.emplace_back(server->port());
  for (int round = 0; round < kRounds; ++round) {
    const auto target = [round](int i) {
      return absl::StrCat("/", round, "/", i, "/", i % 2 == 1 ? "odd" : "even");
    };
    for (int i = 0; i < kClients; ++i) {
      clients[static_cast<size_t>(i)].Send(Post(target(i), absl::StrCat("body ", i)));
    }
    for (int i = 0; i < kClients; ++i) {
      EXPECT_EQ(clients[static_cast<size_t>(i)].ReadReply().body,
                absl::StrCat("POST ", target(i), " body ", i));
    }
  }
  EXPECT_EQ(server->num_connections(), kClients);
  answerer.join();
}

// With one thread: had any of the silent ones a hold on it, nobody would be answered.
TEST(HttpServerTest, SilentClientsHoldUpNobody) {
  const std::string large(16 << 20, 'x');
  const auto server = Started(
      [&](std::unique_ptr<HttpRequest> request) {
        if (request->path() == "/large") return request->Answer(200, {}, large);
        Echo(std::move(request));
      },
      {.num_threads = 1});
  std::vector<RawHttpClient> silent;
  for (int i = 0; i < 200; ++i) {
    silent.emplace_back(server->port());
    // New, served before, in the headers, in the body.
    if (i % 4 == 1) {
      EXPECT_EQ(silent.back().Ask(Get("/x")).status, 200);
    }
    if (i % 4 == 2) silent.back().Send("GET /x HT");
    if (i % 4 == 3)
      silent.back().Send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab");
  }
  // More than the buffers of the sockets hold.
  RawHttpClient reader(server->port());
  reader.Send(Get("/large"));
  RawHttpClient busy(server->port());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(busy.Ask(Get("/y")).body, "GET /y ");
  EXPECT_TRUE(reader.ReadReply().body == large);
}

TEST(HttpServerTest, AReaderThatTakesTooLongIsCut) {
  const auto server = Started(
      [](std::unique_ptr<HttpRequest> request) {
        request->Answer(200, {}, std::string(16 << 20, 'x'));
      },
      {.reply_time = absl::Milliseconds(100)});
  RawHttpClient client(server->port());
  client.Send(Get("/x"));
  char byte;
  EXPECT_EQ(recv(client.fd(), &byte, 1, MSG_PEEK), 1);
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 0; }));
  EXPECT_LT(client.ReadReply().body.size(), size_t{16} << 20);
}

TEST(HttpServerTest, ConnectionsAreBounded) {
  const std::pair<HttpServerOptions, int> cases[] = {
      {HttpServerOptions{.max_connections = 2}, 503},
      {HttpServerOptions{.max_connections_of_address = 2}, 429}};
  for (const auto& [options, status] : cases) {
    const auto server = Started(Echo, options);
    RawHttpClient one(server->port()), two(server->port());
    EXPECT_EQ(one.Ask(Get("/1")).status, 200);
    EXPECT_EQ(two.Ask(Get("/2")).status, 200);
    RawHttpClient three(server->port());
    EXPECT_EQ(three.ReadReply().status, status);
    EXPECT_TRUE(three.IsAtEnd());
    one.Close();
    EXPECT_TRUE(Eventually([&] { return server->num_connections() == 1; }));
    EXPECT_EQ(RawHttpClient(server->port()).Ask(Get("/4")).status, 200);
    EXPECT_EQ(two.Ask(Get("/5")).status, 200);
  }
}

TEST(HttpServerTest, StopLetsRunningRequestsEndAndClosesIdleConnections) {
  Kept kept;
  const auto server = Started(kept.handler());
  RawHttpClient idle(server->port()), running(server->port());
  running.Send(Get("/x"));
  const std::unique_ptr<HttpRequest> request = kept.Next();
  ASSERT_NE(request, nullptr);
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 2; }));
  std::atomic<bool> stopped{false};
  std::thread stopper([&] {
    server->Stop(absl::Minutes(10));
    stopped = true;
  });
  EXPECT_TRUE(idle.IsAtEnd());
  EXPECT_TRUE(Eventually([&] { return !RawHttpClient(server->port()).connected(); }));
  EXPECT_FALSE(stopped);
  request->Answer(200, {}, "answer");
  const RawHttpReply reply = running.ReadReply();
  EXPECT_EQ(reply.body, "answer");
  EXPECT_EQ(reply.header("connection"), "close");
  stopper.join();
  EXPECT_EQ(server->num_connections(), 0);
  server->Stop(absl::Minutes(10));  // once more
}

// All times are longer than a test may take: what ends before ends by itself.
constexpr absl::Duration kNever = absl::Minutes(30);

TEST(HttpServerTest, ARequestOnAKeptConnectionOfAServerThatStopsIsAnswered) {
  const auto server = Started(Echo, {.linger_time = kNever, .close_time = kNever});
  RawHttpClient kept(server->port()), fresh(server->port());
  EXPECT_EQ(kept.Ask(Get("/1")).header("connection"), "");
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 2; }));
  std::thread stopper([&] { server->Stop(kNever); });
  EXPECT_TRUE(Eventually([&] { return !RawHttpClient(server->port()).connected(); }));
  for (RawHttpClient* const client : {&kept, &fresh}) {
    const RawHttpReply reply = client->Ask(Get("/2"));
    EXPECT_EQ(reply.body, "GET /2 ");
    EXPECT_EQ(reply.header("connection"), "close");
    EXPECT_TRUE(client->IsAtEnd());
  }
  // Nothing else holds it up.
  stopper.join();
  EXPECT_EQ(server->num_connections(), 0);
}

TEST(HttpServerTest, AnIdleConnectionIsClosedInOrderAndARequestThatCrossesThatIsNoReset) {
  std::atomic<int> num_handled{0};
  const auto count = [&](std::unique_ptr<HttpRequest> request) {
    ++num_handled;
    Echo(std::move(request));
  };
  const auto server = Started(count, {.linger_time = absl::ZeroDuration(), .close_time = kNever});
  RawHttpClient client(server->port());
  EXPECT_EQ(client.Ask(Get("/1")).status, 200);
  std::thread stopper([&] { server->Stop(kNever); });
  EXPECT_TRUE(client.IsAtEnd());
  // Larger than what the server reads at once.
  EXPECT_TRUE(client.Send(Post("/2", std::string(1 << 20, 'x'))));
  client.CloseWriting();
  // A reset would be an error here, at the latest when all has arrived.
  stopper.join();
  char byte;
  EXPECT_EQ(recv(client.fd(), &byte, 1, 0), 0);
  EXPECT_EQ(num_handled, 1);
}

TEST(HttpServerTest, AnIdleClientThatNeverClosesHoldsAStopUpNoLongerThanItMay) {
  const auto server =
      Started(Echo, {.linger_time = absl::Milliseconds(1), .close_time = absl::Milliseconds(1)});
  RawHttpClient kept(server->port()), fresh(server->port());
  EXPECT_EQ(kept.Ask(Get("/1")).status, 200);
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 2; }));
  server->Stop(kNever);
  EXPECT_EQ(server->num_connections(), 0);
  EXPECT_TRUE(kept.IsAtEnd());
  EXPECT_TRUE(fresh.IsAtEnd());
}

TEST(HttpServerTest, IdleConnectionsHoldAStopUpNoLongerThanItsDrain) {
  const auto server = Started(Echo, {.linger_time = kNever, .close_time = kNever});
  RawHttpClient kept(server->port());
  EXPECT_EQ(kept.Ask(Get("/1")).status, 200);
  server->Stop(absl::Milliseconds(1));
  EXPECT_EQ(server->num_connections(), 0);
  EXPECT_TRUE(kept.IsAtEnd());
}

TEST(HttpServerTest, WhatStillRunsAtTheEndOfTheDrainIsAnswered503) {
  Kept kept;
  auto server = Started(kept.handler());
  RawHttpClient later(server->port());
  later.Send(Get("/x"));
  std::unique_ptr<HttpRequest> request = kept.Next();
  ASSERT_NE(request, nullptr);
  Notification gone;
  request->OnDisconnect([&] { gone.Notify(); });
  server->Stop(absl::Milliseconds(1));
  EXPECT_TRUE(gone.HasBeenNotified());
  EXPECT_EQ(later.ReadReply().status, 503);
  EXPECT_TRUE(later.IsAtEnd());
  // A request may outlive its server, with all that it shows.
  server.reset();
  EXPECT_EQ(request->path(), "/x");
  EXPECT_FALSE(request->peer().empty());
  request->Answer(200, {}, "too late");
  request.reset();
}

// The handler answers only when Stop is under way, so Stop waits for it.
TEST(HttpServerTest, StopWaitsForTheHandlerThatRuns) {
  Notification entered, go_on;
  std::atomic<bool> left{false};
  const auto server = Started([&](std::unique_ptr<HttpRequest> request) {
    request->OnDisconnect([&] { go_on.Notify(); });  // Stop waits no longer
    entered.Notify();
    go_on.WaitFor(absl::Minutes(1));
    left = true;
    request->Answer(200, {}, "answer");
  });
  RawHttpClient client(server->port());
  client.Send(Get("/x"));
  ASSERT_TRUE(entered.WaitFor(absl::Minutes(1)));
  server->Stop(absl::ZeroDuration());
  EXPECT_TRUE(left);
  EXPECT_EQ(server->num_connections(), 0);
}

TEST(HttpServerTest, StopUnderLoadLosesNoRequestThatItAnswered) {
  constexpr int kClients = 8;
  std::atomic<int> num_answered{0};
  const auto server = Started([&](std::unique_ptr<HttpRequest> request) {
    Echo(std::move(request));
    ++num_answered;
  });
  std::atomic<int> num_read{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&] {
      RawHttpClient client(server->port());
      while (client.Ask(Get("/x")).status == 200) ++num_read;
    });
  }
  EXPECT_TRUE(Eventually([&] { return num_read > 100; }));
  server->Stop(absl::Minutes(1));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_read, num_answered);
}

TEST(HttpServerTest, ServersOfOneProcessAreApartAndAPortHasOne) {
  auto one = Started([](std::unique_ptr<HttpRequest> r) { r->Answer(200, {}, "one"); });
  const auto two = Started([](std::unique_ptr<HttpRequest> r) { r->Answer(200, {}, "two"); });
  EXPECT_NE(one->port(), two->port());
  EXPECT_EQ(RawHttpClient(one->port()).Ask(Get("/")).body, "one");
  EXPECT_EQ(RawHttpClient(two->port()).Ask(Get("/")).body, "two");

  const std::string taken = absl::StrCat("127.0.0.1:", one->port());
  const Status status = HttpServer::Start({.addresses = {"127.0.0.1:0", taken}}, Echo).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), absl::StrCat("HTTP server: the address ", taken,
                                           " must be free, got: Address already in use"));
  EXPECT_EQ(RawHttpClient(one->port()).Ask(Get("/")).body, "one");
  one.reset();
  const auto again = Started(Echo, {.addresses = {taken}});
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(RawHttpClient(again->port()).Ask(Get("/")).body, "GET / ");
}

TEST(HttpServerTest, UnixSocketsAndSeveralAddressesAreServed) {
  // The whole path of a test's directory is longer than a socket's may be.
  ASSERT_EQ(chdir(::testing::TempDir().c_str()), 0);
  const std::string path = absl::StrCat(getpid(), ".http.sock");
  std::string peer;
  auto server = Started(
      [&](std::unique_ptr<HttpRequest> request) {
        peer = std::string(request->peer());
        Echo(std::move(request));
      },
      {.addresses = {"unix:" + path, "127.0.0.1:0", "127.0.0.1:0"}});
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->port(), 0);
  ASSERT_EQ(server->addresses().size(), 3u);
  EXPECT_EQ(server->addresses()[0], "unix:" + path);
  EXPECT_NE(server->addresses()[1], server->addresses()[2]);
  RawHttpClient client(path);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.Ask(Post("/x", "abc")).body, "POST /x abc");
  EXPECT_EQ(peer, "unix");
  for (const size_t i : {size_t{1}, size_t{2}}) {
    int port = 0;
    ASSERT_EQ(std::sscanf(server->addresses()[i].c_str(), "127.0.0.1:%d", &port), 1);
    EXPECT_EQ(RawHttpClient(port).Ask(Get("/y")).body, "GET /y ");
  }
  EXPECT_EQ(HttpListener::Open("unix:" + path).status().code(),
            absl::StatusCode::kFailedPrecondition);
  server.reset();
  struct stat file;
  EXPECT_NE(stat(path.c_str(), &file), 0) << "the file goes with the server";

  // A file that a killed server left behind; a file that is none of a server stays.
  {
    StatusOr<HttpListener> killed = HttpListener::Open("unix:" + path);
    ASSERT_TRUE(killed.ok()) << killed.status();
    ASSERT_EQ(rename(path.c_str(), (path + ".moved").c_str()), 0);
  }
  ASSERT_EQ(rename((path + ".moved").c_str(), path.c_str()), 0);
  EXPECT_TRUE(HttpListener::Open("unix:" + path).ok());
  WriteTestFile(path, "text", 0600);
  EXPECT_FALSE(HttpListener::Open("unix:" + path).ok());
  EXPECT_EQ(stat(path.c_str(), &file), 0);
  unlink(path.c_str());
}

TEST(HttpServerTest, OptionsThatNoServerCanHaveAreNamed) {
  const std::pair<HttpServerOptions, const char*> cases[] = {
      {{.addresses = {}}, "HTTP server: addresses must name at least one, got none"},
      {{.addresses = {"localhost"}},
       "HTTP server: an address must be host:port or unix:/path, got 'localhost'"},
      {{.addresses = {"127.0.0.1:65536"}},
       "HTTP server: an address must be host:port or unix:/path, got '127.0.0.1:65536'"},
      {{.addresses = {"unix:"}},
       "HTTP server: the path of a unix socket must have 1 to 107 characters, got ''"},
      {{.tls_key = "key"},
       "HTTP server: tls_key and tls_certificate must come together, got the key alone"},
      {{.client_ca = "ca"},
       "HTTP server: client_ca must come with tls_key and tls_certificate, got none of them"},
      {{.num_threads = -1}, "HTTP server: num_threads must be in [0, 1024], got -1"},
      {{.max_header_bytes = 0}, "HTTP server: max_header_bytes must be in [1024, 16777216], got 0"},
      {{.idle_time = absl::ZeroDuration()}, "HTTP server: idle_time must be > 0, got 0"},
      {{.body_time = -absl::Seconds(1)}, "HTTP server: body_time must be > 0, got -1s"},
  };
  for (const auto& [options, message] : cases) {
    const Status status = HttpServer::Start(options, Echo).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_EQ(status.message(), message);
  }
  EXPECT_EQ(HttpServer::Start({.max_body_bytes = 0}, Echo).status().code(),
            absl::StatusCode::kInvalidArgument);
  // 192.0.2.0/24 is nobody's (RFC 5737).
  EXPECT_EQ(HttpServer::Start({.addresses = {"192.0.2.1:0"}}, Echo).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// ---- TLS

std::string Text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// OpenSSL writes without MSG_NOSIGNAL: of this thread the signal is held back and thrown away.
class SigPipeBlocked {
 public:
  SigPipeBlocked() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigPipeBlocked() {
    const timespec now = {};
    sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_, before_;
};

// The status of one request; 0 when there is no reply. `identity` null: without a certificate.
// `version`: the only one that is offered, even if it is old; 0: those of the library.
int AskWithTls(int port, const std::string& ca_file, const TestCertificate* identity,
               const std::string& request, int version = 0) {
  const SigPipeBlocked blocked;
  RawHttpClient socket(port);
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()),
                                                             SSL_CTX_free);
  EXPECT_EQ(SSL_CTX_load_verify_locations(context.get(), ca_file.c_str(), nullptr), 1);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  if (version != 0) {
    SSL_CTX_set_security_level(context.get(), 0);
    EXPECT_EQ(SSL_CTX_set_min_proto_version(context.get(), version), 1);
    EXPECT_EQ(SSL_CTX_set_max_proto_version(context.get(), version), 1);
  }
  if (identity != nullptr) {
    EXPECT_EQ(SSL_CTX_use_certificate_chain_file(context.get(), identity->certificate_file.c_str()),
              1);
    EXPECT_EQ(
        SSL_CTX_use_PrivateKey_file(context.get(), identity->key_file.c_str(), SSL_FILETYPE_PEM),
        1);
  }
  const std::unique_ptr<SSL, void (*)(SSL*)> ssl(SSL_new(context.get()), SSL_free);
  SSL_set_fd(ssl.get(), socket.fd());
  if (SSL_connect(ssl.get()) != 1) return 0;
  if (SSL_write(ssl.get(), request.data(), static_cast<int>(request.size())) <= 0) return 0;
  std::string reply;
  int status = 0;
  while (std::sscanf(reply.c_str(), "HTTP/1.1 %d ", &status) != 1 || reply.size() < 16) {
    char piece[1'024];
    const int got = SSL_read(ssl.get(), piece, sizeof(piece));
    if (got <= 0) return 0;
    reply.append(piece, static_cast<size_t>(got));
  }
  return status;
}

class HttpServerTlsTest : public ::testing::Test {
 protected:
  HttpServerTlsTest()
      : ours_(::testing::TempDir(), absl::StrCat("http.ours.", getpid())),
        theirs_(::testing::TempDir(), absl::StrCat("http.theirs.", getpid())),
        server_(ours_.Sign("server", "IP:127.0.0.1")) {
    options_.tls_key = Text(server_.key_file);
    options_.tls_certificate = Text(server_.certificate_file);
    options_.max_body_bytes = 100'000;
  }
  TestAuthority ours_, theirs_;
  const TestCertificate server_;
  HttpServerOptions options_;
};

TEST_F(HttpServerTlsTest, RequestsComeOverTlsAlone) {
  const auto server = Started(Echo, options_);
  ASSERT_NE(server, nullptr);
  const auto status = [&](const std::string& request) {
    return AskWithTls(server->port(), ours_.ca_file(), nullptr, request);
  };
  EXPECT_EQ(status(Post("/x", std::string(50'000, 'x'))), 200);
  // Both ways to refuse a body.
  EXPECT_EQ(status("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"), 413);
  std::string chunks = kChunked;
  for (int i = 0; i < 20; ++i) chunks.append("2000\r\n").append(0x2000, 'x').append("\r\n");
  EXPECT_EQ(status(chunks + "0\r\n\r\n"), 413);
  EXPECT_EQ(AskWithTls(server->port(), theirs_.ca_file(), nullptr, Get("/x")), 0)
      << "the server has our certificate";
  RawHttpClient plain(server->port());
  EXPECT_NE(plain.Ask(Get("/x")).status, 200);
}

TEST_F(HttpServerTlsTest, OldVersionsAreRefused) {
  const auto server = Started(Echo, options_);
  ASSERT_NE(server, nullptr);
  const auto status = [&](int version) {
    return AskWithTls(server->port(), ours_.ca_file(), nullptr, Get("/x"), version);
  };
  EXPECT_EQ(status(TLS1_VERSION), 0);
  EXPECT_EQ(status(TLS1_1_VERSION), 0);
  EXPECT_EQ(status(TLS1_2_VERSION), 200);
  EXPECT_EQ(status(TLS1_3_VERSION), 200);
}

TEST_F(HttpServerTlsTest, ClientsShowCertificatesOfTheirAuthority) {
  options_.client_ca = Text(ours_.ca_file());
  const auto server = Started(Echo, options_);
  ASSERT_NE(server, nullptr);
  const TestCertificate friendly = ours_.Sign("friend", "DNS:friend");
  const TestCertificate stranger = theirs_.Sign("stranger", "DNS:stranger");
  const TestCertificate late = ours_.Sign("late", "DNS:late", /*seconds=*/-60);
  EXPECT_EQ(AskWithTls(server->port(), ours_.ca_file(), &friendly, Get("/x")), 200);
  EXPECT_EQ(AskWithTls(server->port(), ours_.ca_file(), nullptr, Get("/x")), 403);
  // A client may keep to itself a certificate by an authority that the server did not ask for.
  EXPECT_NE(AskWithTls(server->port(), ours_.ca_file(), &stranger, Get("/x")), 200);
  EXPECT_NE(AskWithTls(server->port(), ours_.ca_file(), &late, Get("/x")), 200);
}

TEST_F(HttpServerTlsTest, TextsThatAreNoCertificatesAreRefused) {
  options_.tls_certificate = "no PEM";
  const Status status = HttpServer::Start(options_, Echo).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  options_.tls_certificate = Text(theirs_.Sign("other", "IP:127.0.0.1").certificate_file);
  EXPECT_FALSE(HttpServer::Start(options_, Echo).ok()) << "a key of another certificate";
}

}  // namespace
}  // namespace millrace
