// Certificates of the HTTP server (api.md §18, §19). Only http_*.cc and tls_context.cc see this
// header, because it pulls the socket library in.
// Thread rule: pure function; contexts are immutable once made.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>

#include "base/result.h"
#include "server/http.h"

namespace deepinfer {

using TlsContext = std::shared_ptr<boost::asio::ssl::context>;

// TLS 1.2 and newer. Errors: invalid_request naming the file for one that is missing, not PEM, or
// does not fit the others.
Result<TlsContext> LoadTlsContext(const TlsOptions& options);

}  // namespace deepinfer
