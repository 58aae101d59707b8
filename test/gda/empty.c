/* SPDX-License-Identifier: Apache-2.0 */
/* For libraries that lack what is looked for. */
int empty(void);

int empty(void)
{
	return 0;
}
