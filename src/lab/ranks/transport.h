// How the ranks of one run (processes on one machine or several) reach each other: what RankLink
// wants of MPI, or of a test. One thread opens a transport and makes every call.
#pragma once

#include <memory>
#include <string>

namespace condense {

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int n_ranks() const = 0;
  // Copies and never waits; to a rank that is gone, bytes vanish. Between two ranks in order.
  virtual void Send(int to, const std::string& bytes) = 0;
  // A message that has come, if any. Never waits.
  virtual bool Receive(int& from, std::string& bytes) = 0;
  // Leaves together with the other ranks. `code`: what the process will exit with; 0 except on rank
  // 0, whose code is the run's. Nothing is called after it.
  virtual void Leave(int code) = 0;
  // Ends all processes of the run, this one with them: where a rank is gone or hangs, leaving
  // together may last for ever.
  virtual void Abort(int code) = 0;
};

// What lib/condense-mpi.so exports under kOpenTransportName: joins the run that this process was
// started in. Null: cannot, and `error` says why.
using OpenTransportFn = std::unique_ptr<Transport> (*)(std::string& error);
inline constexpr const char* kOpenTransportName = "condense_open_mpi_transport";

}  // namespace condense
