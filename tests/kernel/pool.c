/* A library with a thread pool of its own, as C++ extensions have: workers wait on a condition for ever, and
 * nothing prepares it for a fork. */
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int wanted, done, started;

static void *work(void *unused)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        while (done >= wanted)
            pthread_cond_wait(&changed, &lock);
        done++;
        pthread_cond_broadcast(&changed);
    }
    return unused;
}

/* Has the pool do n pieces of work and returns how many it has done in all. */
int pool_run(int n)
{
    pthread_mutex_lock(&lock);
    for (; started < 2; started++) {
        pthread_t thread;
        pthread_create(&thread, 0, work, 0);
    }
    wanted += n;
    pthread_cond_broadcast(&changed);
    while (done < wanted)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return done;
}
