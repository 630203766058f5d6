// The ranks' messages over MPI: the one file that knows it, built as lib/condense-mpi.so and opened
// only in a process that mpirun started. MPI is used from a single thread and never waited in: its
// own waiting spins, and would take a core from decoding.
#define OMPI_SKIP_MPICXX 1  // the C interface alone
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <list>
#include <string>
#include <vector>

#include "lab/ranks/transport.h"

namespace condense {
namespace {

constexpr int kTag = 1;

std::string ErrorText(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<size_t>(length)};
}

// mpirun, where it started this process itself and lives on when a rank is lost
// (--enable-recovery); else 0.
pid_t RecoveringMpirun() {
  const char* recovery = std::getenv("OMPI_MCA_orte_enable_recovery");
  if (recovery == nullptr || std::strcmp(recovery, "0") == 0) return 0;
  std::string name;
  std::ifstream("/proc/" + std::to_string(getppid()) + "/comm") >> name;
  return name == "mpirun" || name == "mpiexec" || name == "orterun" ? getppid() : 0;
}

// Such an mpirun of Open MPI 4 exits with 0 whatever the ranks exit with, MPI_Abort's code included
// (measured). What it heeds is SIGTERM: it ends what is left of the run and exits with 1.
void SayItFailed() {
  const pid_t mpirun = RecoveringMpirun();
  if (mpirun == 0) return;
  usleep(300'000);  // until it has passed on this program's last lines
  kill(mpirun, SIGTERM);
}

// And it waits for ever for a machine that it cannot reach, until a second SIGTERM soon after the
// first. This process will be gone by then: another one sends them, where it is still needed.
void EndItSoon() {
  const pid_t mpirun = RecoveringMpirun();
  if (mpirun == 0) return;
  std::string script =
      "exec </dev/null >/dev/null 2>&1; sleep 5; kill -TERM PID && sleep 1 && kill -TERM PID";
  for (size_t at; (at = script.find("PID")) != std::string::npos;)
    script.replace(at, 3, std::to_string(mpirun));
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID);  // not to end with this process's group
  char shell[] = "/bin/sh", option[] = "-c";
  char* words[] = {shell, option, script.data(), nullptr};
  pid_t child = 0;
  posix_spawn(&child, shell, nullptr, &attributes, words, environ);
  posix_spawnattr_destroy(&attributes);
}

class MpiTransport : public Transport {
 public:
  MpiTransport() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks_);
    receiving_.resize(static_cast<size_t>(n_ranks_));
    // What cannot be sent or received is silence, and RankLink counts how long that lasts.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }

  int rank() const override { return rank_; }
  int n_ranks() const override { return n_ranks_; }

  void Send(int to, const std::string& bytes) override {
    DropSent();
    Sending& sending = sending_.emplace_back(Sending{bytes, MPI_REQUEST_NULL});
    if (MPI_Isend(sending.bytes.data(), static_cast<int>(sending.bytes.size()), MPI_BYTE, to, kTag,
                  MPI_COMM_WORLD, &sending.request) != MPI_SUCCESS)
      sending_.pop_back();
  }

  bool Receive(int& from, std::string& bytes) override {
    DropSent();
    for (int source = 0; source < n_ranks_; ++source) {
      Receiving& receiving = receiving_[static_cast<size_t>(source)];
      if (receiving.request == MPI_REQUEST_NULL && !Begin(source, receiving)) continue;
      int is_done = 0;
      if (MPI_Test(&receiving.request, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !is_done)
        continue;
      from = source;
      bytes = std::move(receiving.bytes);
      return true;
    }
    return false;
  }

  void Leave(int code) override {
    for (Sending& sending : sending_) MPI_Wait(&sending.request, MPI_STATUS_IGNORE);
    MPI_Finalize();
    if (code != 0) SayItFailed();
  }

  void Abort(int code) override {
    EndItSoon();
    if (code != 0) SayItFailed();
    MPI_Abort(MPI_COMM_WORLD, code);
  }

 private:
  struct Sending {
    std::string bytes;
    MPI_Request request;
  };

  // A message that has begun to come. Of one whose sender died in the middle the rest never comes:
  // it stays here, and MPI_Recv would have waited for it for ever.
  struct Receiving {
    std::string bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  // False where there is none. One at a time of a source, since messages must keep their order.
  static bool Begin(int source, Receiving& receiving) {
    int is_there = 0, length = 0;
    MPI_Message message;
    MPI_Status status;
    if (MPI_Improbe(source, kTag, MPI_COMM_WORLD, &is_there, &message, &status) != MPI_SUCCESS ||
        !is_there)
      return false;
    MPI_Get_count(&status, MPI_BYTE, &length);
    receiving.bytes.resize(static_cast<size_t>(length));
    return MPI_Imrecv(receiving.bytes.data(), length, MPI_BYTE, &message, &receiving.request) ==
           MPI_SUCCESS;
  }

  void DropSent() {
    std::erase_if(sending_, [](Sending& sending) {
      int is_done = 0;
      return MPI_Test(&sending.request, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS || is_done;
    });
  }

  int rank_ = 0, n_ranks_ = 1;
  std::list<Sending> sending_;
  std::vector<Receiving> receiving_;  // by source
};

}  // namespace
}  // namespace condense

extern "C" __attribute__((visibility("default"))) std::unique_ptr<condense::Transport>
condense_open_mpi_transport(std::string& error) {
  int granted = 0;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &granted);
  if (code != MPI_SUCCESS) {
    error = condense::ErrorText(code);
    return nullptr;
  }
  if (granted < MPI_THREAD_FUNNELED) {
    error = "this MPI wants programs of one thread";
    MPI_Abort(MPI_COMM_WORLD, 1);
    return nullptr;
  }
  return std::make_unique<condense::MpiTransport>();
}
