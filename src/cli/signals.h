// signals.h — signals as something to wait for, for a command that lives on after its start.
#pragma once
#include <chrono>
#include <csignal>

namespace sparkinfer {

// From its construction on, SIGINT, SIGTERM and SIGHUP come out of wait() and nowhere else. It must be made
// before the threads that are not to hear of them.
class Signals {
  public:
    Signals();
    // The next signal; 0: none came in time.
    int wait(std::chrono::milliseconds most);

  private:
    sigset_t set_;
};

}  // namespace sparkinfer
