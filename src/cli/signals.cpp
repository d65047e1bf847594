#include "cli/signals.h"

#include <ctime>

namespace sparkinfer {

Signals::Signals() {
    ::sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set_, signal);
    ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
}

int Signals::wait(std::chrono::milliseconds most) {
    const timespec time{time_t(most.count() / 1000), long(most.count() % 1000) * 1'000'000};
    const int signal = ::sigtimedwait(&set_, nullptr, &time);
    return signal > 0 ? signal : 0;
}

}  // namespace sparkinfer
