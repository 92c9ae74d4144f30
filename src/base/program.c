/* SPDX-License-Identifier: Apache-2.0 */
#include "base/program.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

int program_dir(char *ret, size_t ret_size)
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (n < 0)
		return -errno;
	self[n] = '\0';
	char *slash = strrchr(self, '/');
	if (!slash)
		return -ENOENT;
	*slash = '\0';
	return path_format(ret, ret_size, "%s", self);
}

int program_find(const char *from, const char *const *places, size_t places_count, const char *name,
		 char *ret, size_t ret_size)
{
	char own[PATH_MAX], path[PATH_MAX];
	int r = from ? 0 : program_dir(own, sizeof(own));
	if (r < 0)
		return r;
	for (size_t i = 0; i < places_count; i++)
		if (path_format(path, sizeof(path), "%s%s%s/%s", from ? from : own, places[i][0] ? "/" : "",
				places[i], name) == 0 &&
		    access(path, X_OK) == 0 && strlen(path) < ret_size) {
			memcpy(ret, path, strlen(path) + 1);
			return 0;
		}
	return -ENOENT;
}
