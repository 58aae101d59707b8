/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose file of settings counts: that of the user's home in the system's list of users, which NCCL
 * asks for, too. $HOME may be another directory.
 */
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "root.h"
#include "support/check.h"
#include "tools/nccl_env.h"

static char home[64];
static bool listed;

struct passwd *getpwuid(uid_t uid)
{
	static struct passwd user;

	user.pw_dir = home;
	return listed ? &user : NULL;
}

/* What the variable is after NCCL's files have been read, "-": not set. */
static const char *loaded(void)
{
	const char *value;

	unsetenv("NCCL_IB_SL");
	ep_conf_load();
	value = getenv("NCCL_IB_SL");
	return value ? value : "-";
}

int main(void)
{
	char path[96];

	root_make();
	root_put("/user/.nccl.conf", "NCCL_IB_SL=5\n");
	root_put("/other/.nccl.conf", "NCCL_IB_SL=6\n");
	root_put("/own.conf", "NCCL_IB_SL=7\n");
	snprintf(home, sizeof(home), "%s/user", root_dir);
	snprintf(path, sizeof(path), "%s/other", root_dir);
	setenv("HOME", path, 1);
	unsetenv("NCCL_CONF_FILE");
	CHECK(!strcmp(loaded(), "-"), "%s, of a user who is not listed", loaded());
	listed = true;
	CHECK(!strcmp(loaded(), "5"), "%s", loaded());
	snprintf(path, sizeof(path), "%s/user/.nccl.conf", root_dir);
	CHECK(!strcmp(ep_conf_source("NCCL_IB_SL"), path), "it comes from %s",
	      ep_conf_source("NCCL_IB_SL"));
	unsetenv("HOME");
	CHECK(!strcmp(loaded(), "5"), "%s, without HOME", loaded());
	snprintf(path, sizeof(path), "%s/own.conf", root_dir);
	setenv("NCCL_CONF_FILE", path, 1);
	CHECK(!strcmp(loaded(), "7"), "%s, of NCCL_CONF_FILE", loaded());
	root_remove();
	return check_end();
}
