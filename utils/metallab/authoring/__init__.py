"""What makes pages: new ones, the tables and links of the course, and the copies that learners get.

No page imports it.
"""
